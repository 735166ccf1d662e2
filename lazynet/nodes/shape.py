"""Operators that move elements: most are views and cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

from .. import errors
from .._core import lib
from ..graph import Graph, Node
from .opdef import build, misuse, op, settle

__all__ = ["concat", "copy", "reshape", "slice_cols", "slice_rows", "split", "stop_gradient", "transpose"]

_add, _add1, _add_part, _add_slice = lib.ln_add, lib.ln_add1, lib.ln_add_part, lib.ln_add_slice
_CONCAT = (op("concat_rows"), op("concat_cols"))
_COPY, _TRANSPOSE, _STOP_GRADIENT = op("copy"), op("transpose"), op("stop_gradient")


def nodes_of(name: str, nodes: Sequence[Node]) -> tuple[Graph, list[int]]:
    """Graph and handles of a list of nodes that is not empty."""
    if not isinstance(nodes, (list, tuple)):
        misuse(name, nodes)
    if not nodes:
        raise errors.NodeValueError(f"{name}: an empty list is given; at least one node is required")
    try:
        return nodes[0].graph, [node._handle for node in nodes]
    except AttributeError:
        misuse(name, *nodes)


def concat(nodes: Sequence[Node], axis: int = 1) -> Node:
    """One matrix of several.

    Args:
        nodes: Of equal rows (``axis`` 1) or equal cols (``axis`` 0).
        axis: 1 puts them side by side, 0 one below the other.
    """
    if axis not in (0, 1):
        raise errors.NodeValueError(f"concat: axis {axis} is given; 0 (rows) or 1 (cols) is required")
    graph, handles = nodes_of("concat", nodes)
    handle = _add(graph._core, _CONCAT[axis], handles, len(handles), (), 0, (), 0)
    if handle < 0:
        handle = graph._settle(handle, *nodes)
    node = Node()
    node.graph = graph
    node._handle = handle
    return node


def slice_rows(x: Node, start: int, stop: int) -> Node:
    """Rows ``start`` to ``stop - 1``: a view, like ``x[start:stop]``."""
    return _slice(x, start, stop - start, 0, x.shape[1])


def slice_cols(x: Node, start: int, stop: int) -> Node:
    """Columns ``start`` to ``stop - 1``: a view, like ``x[:, start:stop]``."""
    return _slice(x, 0, x.shape[0], start, stop - start)


def _slice(x: Node, row: int, rows: int, col: int, cols: int) -> Node:
    graph = x.graph
    handle = _add_slice(graph._core, x._handle, row, rows, col, cols)
    if handle < 0:
        handle = graph._settle(handle)
    node = Node()
    node.graph = graph
    node._handle = handle
    return node


def split(x: Node, parts: int | Sequence[int], axis: int = 1) -> list[Node]:
    """Views of consecutive columns (``axis`` 1) or rows (``axis`` 0), which together are ``x``.

    Args:
        x: Any shape.
        parts: A number of equal parts, or the size of each.
        axis: 0 or 1.
    """
    if axis not in (0, 1):
        raise errors.NodeValueError(f"split: axis {axis} is given; 0 (rows) or 1 (cols) is required")
    try:
        graph = x.graph
        core, handle = graph._core, x._handle
        if isinstance(parts, int):
            return [_part(graph, _add_part(core, handle, axis, part, parts)) for part in range(parts or 1)]
    except AttributeError:
        misuse("split", x)
    shape = x.shape
    sizes = list(parts)
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0:
        raise errors.ShapeError(f"split: sizes {sizes} are given; sizes that add up to {shape[axis]} are required")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    if axis == 0:
        return [_slice(x, start, length, 0, shape[1]) for start, length in zip(starts, sizes, strict=True)]
    return [_slice(x, 0, shape[0], start, length) for start, length in zip(starts, sizes, strict=True)]


def _part(graph: Graph, handle: int) -> Node:
    if handle < 0:
        handle = graph._settle(handle)
    node = Node()
    node.graph = graph
    node._handle = handle
    return node


def reshape(x: Node, rows: int, cols: int) -> Node:
    """The same elements in row-major order in another shape; one size may be -1. A view where the memory allows."""
    try:
        graph = x.graph
    except AttributeError:
        misuse("reshape", x)
    if rows == -1 or cols == -1:
        whole = x.shape[0] * x.shape[1]
        known = cols if rows == -1 else rows
        if known <= 0 or whole % known:
            raise errors.ShapeError(f"reshape: {x.shape} into ({rows}, {cols}); the known size must divide {whole}")
        rows, cols = (whole // known, cols) if rows == -1 else (rows, whole // known)
    return settle(graph, lib.ln_add_reshape(graph._core, x._handle, rows, cols))


def copy(x: Node) -> Node:
    """The same matrix in memory of its own."""
    try:
        rows, cols = x.shape
    except AttributeError:
        misuse("copy", x)
    return build(x.graph, _COPY, (x._handle,), (), (rows, cols))


def transpose(x: Node) -> Node:
    """``(rows, cols)`` to ``(cols, rows)``."""
    try:
        graph = x.graph
        return settle(graph, _add1(graph._core, _TRANSPOSE, x._handle))
    except AttributeError:
        misuse("transpose", x)


def stop_gradient(x: Node) -> Node:
    """The same value, through which no gradient flows."""
    try:
        graph = x.graph
        return settle(graph, _add1(graph._core, _STOP_GRADIENT, x._handle))
    except AttributeError:
        misuse("stop_gradient", x)
