"""Sums, means, maxima and minima over rows, columns or all elements, and sums of lists of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from .. import errors
from .._core import lib
from ..node import Node, settle
from .opdef import misuse, op
from .shape import build_of_list

__all__ = ["average", "max", "mean", "min", "sum"]

_add1_x = lib.ln_add1_x
_SUM_NODES = op("sum_nodes")
_SUM, _MEAN, _MAX, _MIN = op("reduce_sum"), op("reduce_mean"), op("reduce_max"), op("reduce_min")
_AXES = {0: 0.0, 1: 1.0, -1: 1.0, None: 2.0}


def axis_code(name: str, axis: int | None) -> float:
    """The core's number of an axis."""
    try:
        return _AXES[axis]
    except (KeyError, TypeError):
        raise errors.NodeValueError(
            f"{name}: axis {axis!r} is given; 0 (over rows), 1 (over cols) or None (all) is required"
        ) from None


def reduce(name: str, op_id: int, x: Node, axis: int | None) -> Node:
    """A reduction of one node."""
    try:
        graph = x.graph
        return settle(graph, _add1_x(graph._core, op_id, x._handle, axis_code(name, axis)))
    except AttributeError:
        misuse(name, x)


def _list(name: str, nodes: Sequence[Node], average_: float) -> Node:
    return build_of_list(name, _SUM_NODES, nodes, (average_,))


def sum(x: Node | Sequence[Node], axis: int | None = None) -> Node:
    """The sum of a node's elements, or of a list of nodes of equal shape.

    Args:
        x: A node, or a list of nodes, which are added up element by element.
        axis: 0 sums over rows to ``(1, cols)``, 1 over columns to ``(rows, 1)``, None all to ``(1, 1)``.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> a, b = graph.input([[1.0, 2.0]]), graph.input([[3.0, 4.0]])
        >>> ln.sum([a, b]).value.tolist(), ln.sum(a).item()
        ([[4.0, 6.0]], 3.0)
    """
    if isinstance(x, (list, tuple)):
        if axis is not None:
            raise errors.NodeValueError("sum: a list and an axis are given; a list is summed element by element")
        return _list("sum", x, 0.0)
    if not isinstance(x, Node):
        misuse("sum", x, required="a node or a list of nodes")
    return reduce("sum", _SUM, x, axis)


def average(nodes: Sequence[Node]) -> Node:
    """The mean of a list of nodes of equal shape, element by element."""
    return _list("average", nodes, 1.0)


def mean(x: Node, axis: int | None = None) -> Node:
    """The mean over rows (0), columns (1) or all elements (None); 0 where there are none."""
    return reduce("mean", _MEAN, x, axis)


def max(x: Node, axis: int | None = None) -> Node:
    """The largest over rows (0), columns (1) or all elements (None); the first of equals gets the gradient."""
    return reduce("max", _MAX, x, axis)


def min(x: Node, axis: int | None = None) -> Node:
    """The smallest over rows (0), columns (1) or all elements (None); the first of equals gets the gradient."""
    return reduce("min", _MIN, x, axis)
