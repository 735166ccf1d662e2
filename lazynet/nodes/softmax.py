"""Softmax and its kin."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import errors
from ..node import Node
from .opdef import build_unary, misuse, op, operator
from .reduce import reduce

__all__ = ["log_softmax", "logsumexp", "softmax", "sparsemax"]

_SOFTMAX, _LOG_SOFTMAX = op("softmax"), op("log_softmax")
_LOGSUMEXP = op("logsumexp")


def _along(name: str, op_id: int, x: Node, axis: int) -> Node:
    if axis not in (0, 1, -1):
        raise errors.NodeValueError(f"{name}: axis {axis!r} is given; 0 (over rows) or 1 (over cols) is required")
    return reduce(name, op_id, x, axis)


def softmax(x: Node, axis: int = 1, mask: Any = None) -> Node:
    """exp(x) / Σ exp(x) over columns (1) or rows (0).

    Args:
        x: Any shape.
        axis: What adds up to 1: every row (1) or every column (0).
        mask: A boolean array of x's shape, or one that NumPy broadcasts to it: False entries get 0. Where all are
            masked the result is 0, and so is the gradient.
    """
    if mask is not None:
        if not isinstance(x, Node):
            misuse("softmax", x)
        keep = np.asarray(mask)
        if keep.dtype != np.bool_:
            raise errors.NodeTypeError(f"softmax: a mask of type {keep.dtype} is given; booleans are required")
        try:
            keep = np.broadcast_to(keep, x.shape)
        except ValueError:
            raise errors.ShapeError(
                f"softmax: a mask of shape {keep.shape} is given; one that fits {x.shape} is required"
            ) from None
        x = x + np.where(keep, 0.0, -np.inf)
    return _along("softmax", _SOFTMAX, x, axis)


def log_softmax(x: Node, axis: int = 1) -> Node:
    """x - logsumexp(x) over columns (1) or rows (0)."""
    return _along("log_softmax", _LOG_SOFTMAX, x, axis)


def logsumexp(x: Node, axis: int | None = 1) -> Node:
    """log Σ exp(x) over columns (1: ``(rows, 1)``), rows (0: ``(1, cols)``) or all elements (None)."""
    return reduce("logsumexp", _LOGSUMEXP, x, axis)


@operator("sparsemax", x="node")
def sparsemax(x: Node) -> Node:
    """The point of the probability simplex nearest to each row (Martins and Astudillo 2016, From Softmax to Sparsemax)."""
    return build_unary("sparsemax", x)
