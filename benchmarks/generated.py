"""Random trees, sentences and pairs for machines without the corpora; what time depends on is theirs.

Lengths follow the training sets' quantiles, shapes of trees the share of their splits that cut off one word, and words a
power law with which a minibatch has as many different ones.
"""

import math

import numpy as np

from lazynet.data import Tree

#: Every twentieth part of the sorted lengths of SST, WikiNER and both sides of Multi30k.
TREES = (2, 5, 7, 9, 11, 12, 13, 15, 16, 17, 18, 20, 21, 22, 24, 25, 27, 29, 32, 35, 52)
TAGGED = (2, 10, 12, 14, 15, 16, 18, 19, 20, 22, 23, 24, 26, 27, 29, 31, 33, 36, 40, 46, 135)
ENGLISH = (4, 8, 9, 9, 10, 10, 11, 11, 11, 12, 12, 13, 13, 14, 14, 15, 16, 17, 18, 20, 40)
GERMAN = (2, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 15, 16, 17, 18, 20, 44)
CORRELATION = 0.86  # of both lengths of a pair
#: Of nodes over at least so many words: how often the left child, the right child is one word.
SPLITS = ((32, 0.21, 0.27), (16, 0.36, 0.21), (8, 0.47, 0.17), (4, 0.60, 0.16), (3, 0.77, 0.23), (2, 1.0, 0.0))
CLASSES, TAGS, UNKNOWN = 5, 9, 0.145


class Words:
    """Draws ids, the first ones most often."""

    def __init__(self, rng: np.random.Generator, count: int, exponent: float, first: int = 0):
        self.rng, self.first = rng, first
        self.sums = np.cumsum(np.arange(1, count - first + 1) ** -exponent)

    def __call__(self, length: int) -> list[int]:
        drawn = np.searchsorted(self.sums, self.rng.random(length) * self.sums[-1])
        return (self.first + drawn).tolist()


def lengths(quantiles: tuple[int, ...], at: np.ndarray) -> list[int]:
    return np.interp(at, np.linspace(0, 1, len(quantiles)), quantiles).astype(int).tolist()


def tree(rng: np.random.Generator, words: list[int]) -> Tree:
    label = int(rng.integers(CLASSES))
    count = len(words)
    if count == 1:
        return Tree(label, words[0])
    left, right = next((left, right) for size, left, right in SPLITS if count >= size)
    draw = rng.random()
    if draw < left or count < 4:
        cut = 1 if draw < left else count - 1
    elif draw < left + right:
        cut = count - 1
    else:
        cut = 2 + int(rng.random() ** 2 * (count - 3))  # rather small
    return Tree(label, None, tree(rng, words[:cut]), tree(rng, words[cut:]))


def trees(examples: int, words: int = 18281) -> tuple[list, int]:
    """As :func:`benchmarks.common.trees`."""
    rng = np.random.default_rng(1)
    draw = Words(rng, words, 1.02)
    return [tree(rng, draw(length)) for length in lengths(TREES, rng.random(examples))], words


def tags(examples: int, words: int = 4652) -> tuple[list, int, int]:
    """As :func:`benchmarks.common.tags`."""
    rng = np.random.default_rng(2)
    draw = Words(rng, words, 1.0, first=1)
    data = []
    for length in lengths(TAGGED, rng.random(examples)):
        known = rng.random(length) >= UNKNOWN
        data.append(((np.array(draw(length)) * known).tolist(), rng.integers(TAGS, size=length).tolist()))
    return data, words, TAGS


def parallel(examples: int, source: int = 5920, target: int = 7858) -> tuple[list, int, int]:
    """As :func:`benchmarks.common.parallel`."""
    rng = np.random.default_rng(3)
    first = rng.normal(size=examples)
    second = CORRELATION * first + math.sqrt(1 - CORRELATION**2) * rng.normal(size=examples)
    below = [np.array([0.5 + 0.5 * math.erf(z / math.sqrt(2)) for z in normal]) for normal in (first, second)]
    begin, end = 1, 2
    from_source, from_target = Words(rng, source, 1.13), Words(rng, target, 1.13, first=3)
    pairs = zip(lengths(ENGLISH, below[0]), lengths(GERMAN, below[1]), strict=True)
    return [(from_source(a), [begin, *from_target(b), end]) for a, b in pairs], source, target
