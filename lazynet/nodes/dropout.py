"""Dropout."""

from __future__ import annotations

from .. import errors
from .._core import lib
from ..node import Node, settle
from .opdef import misuse, number_of, op

__all__ = ["dropout"]

_DROPOUT = op("dropout")


def dropout(x: Node, rate: float, training: bool | None = None) -> Node:
    """Zeroes every element with probability ``rate`` and scales the rest by 1 / (1 - rate) (Srivastava et al. 2014).

    The mask follows from the graph's seed and the count of dropout nodes built since it was set, so it does not depend
    on how nodes are batched (Philox counter-based numbers, Salmon et al. 2011).

    Args:
        x: Any shape.
        rate: At least 0 and less than 1.
        training: False returns ``x`` itself; None means what the graph was made for.
    """
    if not isinstance(x, Node):
        misuse("dropout", x)
    if not 0 <= number_of("dropout", "rate", rate) < 1:
        raise errors.NodeValueError(f"dropout: rate={rate} is given; at least 0 and less than 1 is required")
    graph = x.graph
    if rate == 0 or not (graph.training if training is None else training):
        return x
    return settle(graph, lib.ln_add1_x(graph._core, _DROPOUT, x._handle, rate))
