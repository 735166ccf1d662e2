"""One row of many: composites of other operators that take sentences of any length, 0 too."""

from __future__ import annotations

from .. import errors
from ..node import Node
from .linear import matmul
from .opdef import misuse
from .reduce import max, mean, sum
from .shape import slice_rows
from .softmax import softmax

__all__ = ["attention_pool", "pool"]

_KINDS = {
    "sum": lambda x: sum(x, 0),
    "mean": lambda x: mean(x, 0),
    "max": lambda x: max(x, 0),
    "first": lambda x: slice_rows(x, 0, 1),
    "last": lambda x: slice_rows(x, x.rows - 1, x.rows),
}


def pool(x: Node, kind: str) -> Node:
    """One row of the rows of x.

    Args:
        x: ``(T, cols)``.
        kind: ``"sum"``, ``"mean"``, ``"max"``, ``"first"`` or ``"last"``.

    Returns:
        ``(1, cols)``; zeros where T is 0.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> ln.pool(graph.input([[1.0, 5.0], [3.0, 2.0]]), "max").value.tolist()
        [[3.0, 5.0]]
        >>> ln.pool(graph.constant(1.0, 0, 2), "max").value.tolist()
        [[0.0, 0.0]]
    """
    if not isinstance(x, Node):
        misuse("pool", x)
    if kind not in _KINDS:
        raise errors.NodeValueError(f"pool: kind {kind!r} is given; one of {', '.join(_KINDS)} is required")
    return _KINDS[kind](x) if x.rows else x.graph.constant(0.0, 1, x.cols)


def attention_pool(x: Node, scores: Node) -> Node:
    """The mean of the rows of x, weighted by softmax(scores) over the rows (Yang et al. 2016).

    Args:
        x: ``(T, cols)``.
        scores: ``(T, heads)``, a weight a row for each head.

    Returns:
        ``(heads, cols)``; zeros where T is 0.
    """
    if not isinstance(x, Node) or not isinstance(scores, Node):
        misuse("attention_pool", x, scores)
    if scores.rows != x.rows:
        raise errors.ShapeError(
            f"attention_pool: scores of shape {scores.shape} for x of shape {x.shape}; as many rows are required"
        )
    return matmul(softmax(scores, 0), x, transpose_a=True)
