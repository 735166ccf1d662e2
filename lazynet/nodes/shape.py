"""Operators that move elements: most are views and cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _nodes, errors
from .._core import lib
from ..node import Node, settle
from .opdef import build, build_unary, ids_of, integer_of, misuse, op, operator

__all__ = [
    "concat", "copy", "reshape", "reverse", "slice_cols", "slice_rows", "split", "stop_gradient", "take_cols",
    "take_rows", "transpose",
]  # fmt: skip

_add_slice = lib.ln_add_slice
_CONCAT = (op("concat_rows"), op("concat_cols"))
_COPY, _TAKE_ROWS, _TAKE_COLS = op("copy"), op("take_rows"), op("take_cols")


def build_of_list(name: str, op_id: int, nodes: Sequence[Node], attributes: Sequence[float] = ()) -> Node:
    """An operator of a list of nodes that is not empty."""
    if not isinstance(nodes, (list, tuple)):
        misuse(name, nodes, required="a list of nodes")
    if not nodes:
        raise errors.NodeValueError(f"{name}: an empty list is given; at least one node is required")
    try:
        graph = nodes[0].graph
        return build(graph, op_id, nodes, attributes)
    except AttributeError:
        misuse(name, *nodes)


@operator(("concat_rows", "concat_cols"), nodes="nodes", axis="choice")
def concat(nodes: Sequence[Node], axis: int = 1) -> Node:
    """One matrix of several.

    Args:
        nodes: Of equal rows (``axis`` 1) or equal cols (``axis`` 0).
        axis: 1 puts them side by side, 0 one below the other.
    """
    if axis not in (0, 1):
        raise errors.NodeValueError(f"concat: axis {axis} is given; 0 (rows) or 1 (cols) is required")
    return build_of_list("concat", _CONCAT[axis], nodes)


def _require_node(name: str, x: Any) -> None:
    if not isinstance(x, Node):
        misuse(name, x)


def slice_rows(x: Node, start: int, stop: int) -> Node:
    """Rows ``start`` to ``stop - 1``: a view, like ``x[start:stop]``."""
    _require_node("slice_rows", x)
    start, stop = integer_of("slice_rows", "start", start), integer_of("slice_rows", "stop", stop)
    return _slice(x, start, stop - start, 0, x.shape[1])


def slice_cols(x: Node, start: int, stop: int) -> Node:
    """Columns ``start`` to ``stop - 1``: a view, like ``x[:, start:stop]``."""
    _require_node("slice_cols", x)
    start, stop = integer_of("slice_cols", "start", start), integer_of("slice_cols", "stop", stop)
    return _slice(x, 0, x.shape[0], start, stop - start)


def _slice(x: Node, row: int, rows: int, col: int, cols: int) -> Node:
    graph = x.graph
    return settle(graph, _add_slice(graph._core, x._handle, row, rows, col, cols))


def split(x: Node, parts: int | Sequence[int], axis: int = 1) -> list[Node]:
    """Views of consecutive columns (``axis`` 1) or rows (``axis`` 0), which together are ``x``.

    Args:
        x: Any shape.
        parts: A number of equal parts, or the size of each.
        axis: 0 or 1.
    """
    if axis not in (0, 1):
        raise errors.NodeValueError(f"split: axis {axis} is given; 0 (rows) or 1 (cols) is required")
    _require_node("split", x)
    if isinstance(parts, int):
        views: list[Node] = _nodes.parts(x, axis, integer_of("split", "parts", parts))
        return views
    shape = x.shape
    sizes = list(parts)
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0:
        raise errors.ShapeError(f"split: sizes {sizes} are given; sizes that add up to {shape[axis]} are required")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    if axis == 0:
        return [_slice(x, start, length, 0, shape[1]) for start, length in zip(starts, sizes, strict=True)]
    return [_slice(x, 0, shape[0], start, length) for start, length in zip(starts, sizes, strict=True)]


def reshape(x: Node, rows: int, cols: int) -> Node:
    """The same elements in row-major order in another shape; one size may be -1. A view where the memory allows."""
    _require_node("reshape", x)
    rows, cols = integer_of("reshape", "rows", rows), integer_of("reshape", "cols", cols)
    if rows == -1 or cols == -1:
        whole = x.shape[0] * x.shape[1]
        known = cols if rows == -1 else rows
        if known <= 0 or whole % known:
            raise errors.ShapeError(f"reshape: {x.shape} into ({rows}, {cols}); the known size must divide {whole}")
        rows, cols = (whole // known, cols) if rows == -1 else (rows, whole // known)
    return settle(x.graph, lib.ln_add_reshape(x.graph._core, x._handle, rows, cols))


def copy(x: Node) -> Node:
    """The same matrix in memory of its own."""
    _require_node("copy", x)
    return build(x.graph, _COPY, (x,), (), x.shape)


def take_rows(x: Node, rows: Any) -> Node:
    """Some rows, in any order, any of them more than once.

    Args:
        x: ``(rows, cols)``.
        rows: A row, or a sequence or array of rows, each at least 0 and less than x's.

    Returns:
        ``(len(rows), cols)``.

    Example:
        >>> import lazynet as ln
        >>> ln.take_rows(ln.Graph().input([[1.0], [2.0], [3.0]]), [2, 0, 2]).value.tolist()
        [[3.0], [1.0], [3.0]]
    """
    _require_node("take_rows", x)
    return build(x.graph, _TAKE_ROWS, (x,), (), ids_of("take_rows", rows))


def reverse(x: Node) -> Node:
    """The rows from the last to the first."""
    _require_node("reverse", x)
    return take_rows(x, list(range(x.rows - 1, -1, -1)))


def take_cols(x: Node, ids: Node) -> Node:
    """Of every row some elements: element ``(r, k)`` is ``x[r, ids[r, k]]``.

    Args:
        x: ``(rows, cols)``.
        ids: ``(rows, count)``; columns that the graph computes, such as :func:`~lazynet.top_k` gives.

    Returns:
        ``(rows, count)``.

    Raises:
        NodeIndexError: When it is computed: an id is out of range or no whole number.
    """
    _require_node("take_cols", x)
    _require_node("take_cols", ids)
    return build(x.graph, _TAKE_COLS, (x, ids))


@operator("transpose", x="node")
def transpose(x: Node) -> Node:
    """``(rows, cols)`` to ``(cols, rows)``."""
    return build_unary("transpose", x)


@operator("stop_gradient", x="node")
def stop_gradient(x: Node) -> Node:
    """The same value, through which no gradient flows."""
    return build_unary("stop_gradient", x)
