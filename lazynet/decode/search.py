"""Beam search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import errors
from ..graph import Graph
from ..nodes.opdef import number_of
from .arguments import MaxLength, at_least, limits
from .model import Hypothesis, StepModel
from .stepper import Stepper

__all__ = ["beam_search"]


class _Live(NamedTuple):
    """A hypothesis that goes on: its last token is not yet stepped."""

    tokens: list[int]
    last: int
    score: float
    state: Any


class _Beam:
    """The hypotheses of one source, the best first."""

    def __init__(self, state: Any, begin: int, limit: int, beam: int, best: int, penalty: float) -> None:
        self.live = [_Live([], begin, 0.0, state)]
        self.finished: list[Hypothesis] = []
        self.length, self.limit, self.beam, self.best, self.penalty = 0, limit, beam, best, penalty

    def advance(self, scores: np.ndarray, ids: np.ndarray, states: Sequence[Any], end: int) -> None:
        """Takes the best ``beam`` candidates; what ends among them makes room for those that follow.

        Args:
            scores: Of each live hypothesis and its candidates, the total; -inf is none.
            ids: The candidates.
            states: After the last token of each live hypothesis.
            end: The token that ends.
        """
        before, self.live = self.live, []
        self.length += 1
        width = ids.shape[1]
        order = np.argsort(-scores, axis=None, kind="stable")[: 2 * self.beam]
        candidates = zip(
            (order // width).tolist(), ids.ravel()[order].tolist(), scores.ravel()[order].tolist(), strict=True
        )
        for rank, (parent, token, score) in enumerate(candidates):
            if score == -math.inf or len(self.live) == self.beam:
                break
            tokens = before[parent].tokens
            if token != end:
                self.live.append(_Live([*tokens, token], token, score, states[parent]))
            elif rank < self.beam:
                self.finished.append(Hypothesis(tokens, score, score / self._divisor(self.length), True))
        self.finished.sort(key=lambda hypothesis: -hypothesis.normalized)
        del self.finished[self.best :]

    @property
    def is_done(self) -> bool:
        """Whether no live hypothesis may go on, or none can become one of the best."""
        if not self.live or self.length == self.limit:
            return True
        # Scores only fall, and the divisor is monotonic in the length.
        bound = max(self.live[0].score / self._divisor(length) for length in (self.length + 1, self.limit))
        return len(self.finished) == self.best and bound <= self.finished[-1].normalized

    def result(self) -> list[Hypothesis]:
        """The best finished hypotheses; where they are too few, those that were cut off follow."""
        divisor = self._divisor(self.length)
        cut = [Hypothesis(live.tokens, live.score, live.score / divisor, False) for live in self.live]
        return [*self.finished, *cut[: self.best - len(self.finished)]]

    def _divisor(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.penalty)


def beam_search(
    model: StepModel,
    sources: Sequence[Any],
    *,
    beam: int = 5,
    begin: int,
    end: int,
    max_length: MaxLength,
    length_penalty: float = 0.0,
    best: int = 1,
    graph: Graph | None = None,
) -> list[list[Hypothesis]]:
    """The most probable outputs of every source that a beam finds.

    The live hypotheses of all sources take each step together, in one forward. Those with the ``beam`` largest sums of
    log-probabilities go on; one that ends is set aside if it is among them, and its place goes to the next. Finished
    ones are ranked by score / ((5 + n) / 6)^length_penalty (Wu et al. 2016, Google's Neural Machine Translation System),
    n the number of tokens with ``end``. A source is done, and leaves the minibatch, when no live hypothesis can come to
    rank among its ``best`` finished ones any more. Of equals the one from the higher ranked hypothesis comes first, then
    that with the lower token.

    Args:
        model: Any object with the methods of :class:`StepModel`.
        sources: What the model's ``start`` takes.
        beam: Live hypotheses a source, at least 1; 1 without a length penalty is the same as :func:`greedy`.
        begin: The token that the first step takes.
        end: The token that ends an output; less than V.
        max_length: The most tokens of an output, ``end`` included; a number or a function of the source.
        length_penalty: 0 ranks by log-probability, more favours longer outputs.
        best: How many hypotheses are wanted, at least 1 and at most ``beam``.
        graph: A ``Graph(train=False)`` to use, which is cleared, of the model's element type and device; None for one of
            its own, which has those of a module's parameters.

    Returns:
        For every source at most ``best`` hypotheses, the best first. Where ``max_length`` cut the search off before so
        many were finished, the best unfinished ones follow the finished ones.

    Raises:
        ShapeError: The logits are not ``(1, V)``; names the step.
        NodeValueError: The logits hold NaN or +inf, or nothing but -inf; names the step.
        GraphError: The step returns nodes of another graph, or ``graph`` trains.

    Example:
        >>> import lazynet as ln
        >>> class Bigrams:
        ...     table = ln.Parameter([[0.0, 2.0, 1.0], [0.0, 0.0, 3.0], [2.0, 0.0, 0.0]])
        ...     def start(self, graph, source):
        ...         return None
        ...     def step(self, graph, state, token):
        ...         return ln.lookup(graph, self.table, token), state
        >>> [found] = ln.decode.beam_search(Bigrams(), ["any"], beam=3, best=2, begin=0, end=2, max_length=9)
        >>> [(hypothesis.tokens, round(hypothesis.score, 2)) for hypothesis in found]
        [([1], -0.5), ([], -1.41)]
    """
    name = "beam_search"
    beam, begin = at_least(1, name, "beam", beam), at_least(0, name, "begin", begin)
    if at_least(1, name, "best", best) > beam:
        raise errors.NodeValueError(f"{name}: best {best} is given for a beam of {beam}; at most the beam is required")
    if not math.isfinite(number_of(name, "length_penalty", length_penalty)):
        raise errors.NodeValueError(f"{name}: length_penalty {length_penalty} is given; a finite number is required")
    lengths = limits(name, max_length, sources)
    with Stepper(name, model, end, graph) as stepper:
        beams = [
            _Beam(state, begin, limit, beam, best, length_penalty)
            for state, limit in zip(stepper.start(sources), lengths, strict=True)
        ]
        while pending := [each for each in beams if not each.is_done]:
            _advance(stepper, pending, beam, end)
    return [each.result() for each in beams]


def _advance(stepper: Stepper, beams: list[_Beam], beam: int, end: int) -> None:
    live = [hypothesis for each in beams for hypothesis in each.live]
    # Of one hypothesis no more than `beam` can go on, and one can end.
    scores, ids, states = stepper.step([each.state for each in live], [each.last for each in live], beam + 1)
    scores += np.array([each.score for each in live])[:, None]
    row = 0
    for each in beams:
        rows = slice(row, row + len(each.live))
        each.advance(scores[rows], ids[rows], states[rows], end)
        row = rows.stop
