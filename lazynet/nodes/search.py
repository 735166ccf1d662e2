"""Ids that are computed in the graph: of the largest elements."""

from __future__ import annotations

from ..node import Node
from .opdef import build, integer_of, misuse, op
from .shape import take_cols

__all__ = ["argmax", "top_k"]

_TOP_IDS = op("top_ids")


def top_k(x: Node, k: int) -> tuple[Node, Node]:
    """The k largest elements of every row, the largest first, and their columns.

    Args:
        x: ``(rows, cols)``, cols at most 2^24.
        k: At least 1 and at most ``cols``.

    Returns:
        Values ``(rows, k)``, through which gradients flow, and ids ``(rows, k)``, numbers that
        :func:`~lazynet.lookup_node` and :func:`~lazynet.take_cols` take. Of equal elements the first comes first.

    Example:
        >>> import lazynet as ln
        >>> values, ids = ln.top_k(ln.Graph().input([[3.0, 9.0, 5.0]]), 2)
        >>> values.value.tolist(), ids.value.tolist()
        ([[9.0, 5.0]], [[1.0, 2.0]])
    """
    ids = _top_ids("top_k", x, integer_of("top_k", "k", k))
    return take_cols(x, ids), ids


def argmax(x: Node) -> Node:
    """The column of the largest element of every row, ``(rows, 1)``; of equals the first. No gradient flows.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> best = ln.argmax(graph.input([[3.0, 9.0], [5.0, 1.0]]))
        >>> ln.lookup_node(ln.Parameter([[10.0], [20.0]]), best).value.tolist()
        [[20.0], [10.0]]
    """
    return _top_ids("argmax", x, 1)


def _top_ids(name: str, x: Node, count: int) -> Node:
    if not isinstance(x, Node):
        misuse(name, x)
    return build(x.graph, _TOP_IDS, (x,), (count,))
