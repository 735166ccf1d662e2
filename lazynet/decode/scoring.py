"""The log-probability of outputs that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import errors
from ..graph import Graph
from ..node import Node
from ..nodes.loss import cross_entropy
from ..nodes.opdef import ids_of
from ..nodes.shape import concat
from .arguments import at_least
from .model import StepModel
from .stepper import Stepper

__all__ = ["score"]


def score(
    model: StepModel,
    sources: Sequence[Any],
    outputs: Sequence[Sequence[int]],
    *,
    begin: int,
    end: int | None,
    graph: Graph | None = None,
) -> list[float]:
    """log p(output | source) of every pair: forced decoding, all steps of all pairs in one forward.

    Args:
        model: Any object with the methods of :class:`StepModel`.
        sources: What the model's ``start`` takes.
        outputs: Tokens without ``begin`` and ``end``, for every source.
        begin: The token that the first step takes.
        end: The token that ends every output, or None where they are not finished.
        graph: As of :func:`beam_search`, and so are the errors, but for those of NaN and infinity: the result has them.

    Example:
        >>> import lazynet as ln
        >>> class Coin:
        ...     def start(self, graph, source):
        ...         return None
        ...     def step(self, graph, state, token):
        ...         return graph.input([0.0, 0.0]), state
        >>> [round(each, 4) for each in ln.decode.score(Coin(), ["a", "b"], [[], [0, 0]], begin=0, end=1)]
        [-0.6931, -2.0794]
    """
    begin = at_least(0, "score", "begin", begin)
    if len(sources) != len(outputs):
        raise errors.NodeValueError(
            f"score: {len(sources)} sources and {len(outputs)} outputs are given; one each is required"
        )
    losses: list[list[Node]] = []
    with Stepper("score", model, end, graph) as stepper:
        for state, output in zip(stepper.start(sources), outputs, strict=True):
            losses.append([])
            last = begin
            for token in [*ids_of("score", output), *([] if end is None else [end])]:
                stepper.steps = len(losses[-1])
                logits, state = stepper.logits(state, last)
                losses[-1].append(cross_entropy(logits, token, reduction="sum"))
                last = token
        flat = [loss for each in losses for loss in each]
        values = concat(flat).value.astype(np.float64).ravel() if flat else np.zeros(0)
    parts = np.split(values, np.cumsum([len(each) for each in losses])[:-1])
    return [-float(part.sum()) for part in parts[: len(losses)]]
