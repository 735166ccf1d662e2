"""One output a source, token after token: the most probable one, or one drawn at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import errors
from ..graph import Graph
from ..nodes.opdef import number_of
from .arguments import MaxLength, at_least, limits
from .model import Hypothesis, StepModel
from .stepper import Stepper

__all__ = ["greedy", "sample"]


class _Output:
    """The output of one source as far as it goes."""

    def __init__(self, number: int, state: Any, begin: int, limit: int) -> None:
        self.number, self.state, self.last, self.limit = number, state, begin, limit
        self.tokens: list[int] = []
        self.score, self.finished = 0.0, False

    @property
    def is_done(self) -> bool:
        return self.finished or len(self.tokens) == self.limit

    def add(self, token: int, score: float, state: Any, end: int) -> None:
        """Takes the next token."""
        self.last, self.state, self.finished = token, state, token == end
        self.score += score
        if not self.finished:
            self.tokens.append(token)

    def result(self) -> Hypothesis:
        return Hypothesis(self.tokens, self.score, self.score, self.finished)


def greedy(
    model: StepModel,
    sources: Sequence[Any],
    *,
    begin: int,
    end: int,
    max_length: MaxLength,
    graph: Graph | None = None,
) -> list[list[Hypothesis]]:
    """Of every source the output that the most probable token, step by step, makes; of equals the lowest id.

    Args:
        model: Any object with the methods of :class:`StepModel`.
        sources: What the model's ``start`` takes.
        begin: The token that the first step takes.
        end: The token that ends an output; less than V.
        max_length: The most tokens of an output, ``end`` included; a number or a function of the source.
        graph: As of :func:`beam_search`, and so are the errors.

    Returns:
        For every source a list of one hypothesis.

    Example:
        >>> import lazynet as ln
        >>> class Bigrams:
        ...     table = ln.Parameter([[0.0, 2.0, 1.0], [0.0, 0.0, 3.0], [2.0, 0.0, 0.0]])
        ...     def start(self, graph, source):
        ...         return None
        ...     def step(self, graph, state, token):
        ...         return ln.lookup(graph, self.table, token), state
        >>> [[hypothesis]] = ln.decode.greedy(Bigrams(), ["any"], begin=0, end=2, max_length=9)
        >>> hypothesis.tokens, hypothesis.finished
        ([1], True)
    """

    def first(output: _Output, scores: np.ndarray) -> int:
        return 0

    return _decode("greedy", model, sources, begin, end, max_length, graph, 1, first)


def sample(
    model: StepModel,
    sources: Sequence[Any],
    *,
    begin: int,
    end: int,
    max_length: MaxLength,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    graph: Graph | None = None,
) -> list[list[Hypothesis]]:
    """Of every source an output drawn from the model, each token with probability p^(1 / temperature) / Σ.

    What is drawn for a source depends on the seed and the source's position, not on the other sources.

    Args:
        model: Any object with the methods of :class:`StepModel`.
        sources: What the model's ``start`` takes.
        begin: The token that the first step takes.
        end: The token that ends an output; less than V.
        max_length: The most tokens of an output, ``end`` included; a number or a function of the source.
        temperature: Above 0; less than 1 favours the probable tokens.
        top_k: Draw from the k most probable tokens only (Fan et al. 2018, Hierarchical Neural Story Generation).
        seed: At least 0.
        graph: As of :func:`beam_search`, and so are the errors.

    Returns:
        For every source a list of one hypothesis, whose score is its log-probability under the model as it is.

    Example:
        >>> import lazynet as ln
        >>> class Coin:
        ...     def start(self, graph, source):
        ...         return None
        ...     def step(self, graph, state, token):
        ...         return graph.input([0.0, 0.0]), state
        >>> outputs = ln.decode.sample(Coin(), range(1000), begin=0, end=1, max_length=1)
        >>> 450 < sum(hypothesis.finished for [hypothesis] in outputs) < 550
        True
    """
    name = "sample"
    if not 0 < number_of(name, "temperature", temperature) < math.inf:
        raise errors.NodeValueError(f"{name}: temperature {temperature} is given; a number above 0 is required")
    count = None if top_k is None else at_least(1, name, "top_k", top_k)
    seed = at_least(0, name, "seed", seed)
    random = [np.random.default_rng([seed, number]) for number in range(len(sources))]

    def draw(output: _Output, scores: np.ndarray) -> int:
        # The largest of log p + Gumbel noise is distributed as p (Gumbel 1954).
        return int(np.argmax(scores / temperature + random[output.number].gumbel(size=scores.shape)))

    return _decode(name, model, sources, begin, end, max_length, graph, count, draw)


def _decode(
    name: str,
    model: StepModel,
    sources: Sequence[Any],
    begin: int,
    end: int,
    max_length: MaxLength,
    graph: Graph | None,
    count: int | None,
    choose: Callable[[_Output, np.ndarray], int],
) -> list[list[Hypothesis]]:
    """Lets ``choose`` say which of the ``count`` most probable tokens is taken, given their log-probabilities."""
    begin = at_least(0, name, "begin", begin)
    lengths = limits(name, max_length, sources)
    with Stepper(name, model, end, graph) as stepper:
        states = stepper.start(sources)
        outputs = [
            _Output(i, state, begin, limit) for i, (state, limit) in enumerate(zip(states, lengths, strict=True))
        ]
        while pending := [output for output in outputs if not output.is_done]:
            scores, ids, states = stepper.step(
                [output.state for output in pending], [output.last for output in pending], count
            )
            for output, row, tokens, state in zip(pending, scores, ids, states, strict=True):
                chosen = choose(output, row)
                output.add(int(tokens[chosen]), float(row[chosen]), state, end)
    return [[output.result()] for output in outputs]
