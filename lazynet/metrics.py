"""Metrics that accumulate over minibatches: ``update`` with each, then read ``value``; ``reset`` starts over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from . import errors

__all__ = ["Accuracy", "Mean", "Perplexity", "Span", "SpanF1", "SpanScore", "spans"]


class Mean:
    """The mean of numbers; NaN of none.

    Example:
        >>> mean = Mean()
        >>> mean.update(2.0)
        >>> mean.update(5.0, count=2)
        >>> mean.value
        4.0
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all."""
        self.total, self.count = 0.0, 0

    def update(self, value: SupportsFloat, count: int = 1) -> None:
        """Adds a number, or the mean of ``count`` numbers."""
        if count < 0:
            raise errors.NodeValueError(f"{type(self).__name__}: count={count} is given; at least 0 is required")
        if count:
            self.total += float(value) * count
            self.count += count

    @property
    def value(self) -> float:
        """The mean."""
        return self.total / self.count if self.count else math.nan


class Perplexity:
    """exp of the mean negative log-likelihood of a token, in nats; NaN without tokens.

    Example:
        >>> perplexity = Perplexity()
        >>> perplexity.update(2 * math.log(8), tokens=2)  # a loss summed over two tokens
        >>> round(perplexity.value, 6)
        8.0
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all."""
        self.loss, self.tokens = 0.0, 0

    def update(self, loss: SupportsFloat, tokens: int) -> None:
        """Adds a loss that was summed, not averaged, over ``tokens`` tokens."""
        if tokens < 0:
            raise errors.NodeValueError(f"Perplexity: tokens={tokens} is given; at least 0 is required")
        self.loss += float(loss)
        self.tokens += tokens

    @property
    def value(self) -> float:
        """The perplexity; infinite where it is too large for a float."""
        if not self.tokens:
            return math.nan
        try:
            return math.exp(self.loss / self.tokens)
        except OverflowError:
            return math.inf


def _column(ids: np.ndarray) -> np.ndarray:
    """One column of ids, which nodes hold as numbers of their type, as a sequence of integers."""
    if ids.ndim != 2 or ids.shape[1] != 1:
        return ids
    ids = ids[:, 0]
    return ids.astype(np.int64) if ids.dtype.kind == "f" and (ids == np.floor(ids)).all() else ids


class Accuracy:
    """The share of predictions that are right; NaN of none.

    Args:
        ignore_index: Expected class ids that do not count, as of the losses.

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy.update(["DET", "NOUN"], ["DET", "VERB"])
        >>> accuracy.update([[0.1, 0.9], [0.8, 0.2]], [1, 0])
        >>> accuracy.value
        0.75
    """

    def __init__(self, ignore_index: int = -100) -> None:
        self.ignore_index = ignore_index
        self.reset()

    def reset(self) -> None:
        """Forgets all."""
        self.right = self.count = 0

    def update(self, predicted: Any, expected: Any) -> None:
        """Adds predictions.

        Args:
            predicted: One class id or tag, several, one column of ids as ``ln.argmax`` and ``CRF.decode`` give, or a
                matrix with a row of scores for each, of which the highest counts; a row with NaN is wrong.
            expected: One class id or tag, or as many as there are predictions.
        """
        given, wanted = _column(np.asarray(predicted)), _column(np.atleast_1d(expected))
        scored = given.ndim == 2 and given.shape[1] > 0 and given.dtype.kind in "fiub"
        classes = given.argmax(axis=1) if scored else np.atleast_1d(given)
        if classes.shape != wanted.shape or wanted.ndim != 1:
            raise errors.ShapeError(
                f"Accuracy: predictions of shape {given.shape} and expected ones of shape {wanted.shape} are given; as "
                "many of both are required"
            )
        if not wanted.size:
            return
        kinds = {classes.dtype.kind, wanted.dtype.kind}
        if kinds != {"U"} and not kinds <= set("iub"):
            raise errors.NodeTypeError(
                f"Accuracy: {given.dtype} is predicted and {wanted.dtype} expected; class ids or tags of both are required"
            )
        right, counts = classes == wanted, np.ones(wanted.shape, bool)
        if scored:
            right &= ~np.isnan(given).any(axis=1)
        if kinds != {"U"}:
            counts = wanted != self.ignore_index
        self.right += int((right & counts).sum())
        self.count += int(counts.sum())

    @property
    def value(self) -> float:
        """The accuracy."""
        return self.right / self.count if self.count else math.nan


class Span(NamedTuple):
    """Tokens ``start`` to ``end - 1`` of a sentence, and their type."""

    type: str
    start: int
    end: int


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of a sentence tagged in BIO, IOB1 or BIOES, read as by ``conlleval`` (Tjong Kim Sang 2000).

    A tag is ``O`` or a prefix, a hyphen and a type. ``B`` and ``S`` begin a span; ``I`` and ``E`` do so where the tag
    before ended one, is ``O`` or is of another type, so that a span may begin without ``B``.

    Raises:
        NodeValueError: A tag is none of these.
        NodeTypeError: A tag is no text.

    Example:
        >>> [tuple(span) for span in spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])]
        [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    found: list[Span] = []
    open_type: str | None = None
    start = 0
    for place, tag in enumerate(tags):
        if not isinstance(tag, str):
            raise errors.NodeTypeError(f"spans: {tag!r} is given as a tag; text is required")
        prefix, _, kind = tag.partition("-")
        if prefix not in ("O", "B", "I", "E", "S") or (prefix == "O" and kind):
            raise errors.NodeValueError(
                f"spans: the tag {tag!r} is given; O, or one of B, I, E and S, a hyphen and a type, is required"
            )
        if open_type is not None and (prefix in ("O", "B", "S") or kind != open_type):
            found.append(Span(open_type, start, place))
            open_type = None
        if prefix != "O" and open_type is None:
            open_type, start = kind, place
        if prefix in ("E", "S") and open_type is not None:
            found.append(Span(open_type, start, place + 1))
            open_type = None
    if open_type is not None:
        found.append(Span(open_type, start, len(tags)))
    return found


class SpanScore(NamedTuple):
    """Precision, recall and F1 of spans, 0 where they divide by 0, and how many were expected."""

    precision: float
    recall: float
    f1: float
    support: int


class SpanF1:
    """Micro-averaged F1 of exact spans, those of :func:`spans`, as ``conlleval`` and seqeval count them.

    A predicted span is right where its first token, its last token and its type are. The value of nothing is 0.

    Example:
        >>> f1 = SpanF1()
        >>> f1.update([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "B-ORG"]])
        >>> f1.value, f1.by_type["PER"].f1
        (0.5, 1.0)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all."""
        self._right: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._expected: Counter[str] = Counter()

    def update(self, predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> None:
        """Adds a minibatch: for each sentence its tags."""
        sentences = []
        for name, minibatch in (("predicted", predicted), ("expected", expected)):
            if isinstance(minibatch, str) or any(isinstance(tags, str) for tags in minibatch):
                raise errors.NodeTypeError(f"SpanF1: {name} is one sentence; a list of sentences is required")
            sentences.append([list(tags) for tags in minibatch])
        lengths = [[len(tags) for tags in minibatch] for minibatch in sentences]
        if lengths[0] != lengths[1]:
            raise errors.ShapeError(
                f"SpanF1: sentences of {lengths[0]} tags are predicted and of {lengths[1]} expected; the same are required"
            )
        pairs = [(set(spans(ours)), set(spans(theirs))) for ours, theirs in zip(*sentences, strict=True)]
        for ours, theirs in pairs:
            self._right.update(span.type for span in ours & theirs)
            self._predicted.update(span.type for span in ours)
            self._expected.update(span.type for span in theirs)

    @property
    def overall(self) -> SpanScore:
        """Of all types together."""
        return _score(self._right.total(), self._predicted.total(), self._expected.total())

    @property
    def by_type(self) -> dict[str, SpanScore]:
        """Of every type that was predicted or expected, in the order of the alphabet."""
        types = sorted(self._predicted.keys() | self._expected.keys())
        return {each: _score(self._right[each], self._predicted[each], self._expected[each]) for each in types}

    @property
    def value(self) -> float:
        """F1 of all types together."""
        return self.overall.f1


def _score(right: int, predicted: int, expected: int) -> SpanScore:
    """F1 as 2 right / (predicted + expected): the harmonic mean without its rounding."""
    precision = right / predicted if predicted else 0.0
    recall = right / expected if expected else 0.0
    return SpanScore(precision, recall, 2 * right / (predicted + expected) if right else 0.0, expected)
