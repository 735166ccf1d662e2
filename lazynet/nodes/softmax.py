"""Softmax and its kin."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..node import Node
from .attention import Window, band_of, hiding
from .opdef import build, build_unary, misuse, op, operator
from .reduce import axis_code, reduce

__all__ = ["log_softmax", "logsumexp", "softmax", "sparsemax"]

_SOFTMAX, _LOG_SOFTMAX = op("softmax"), op("log_softmax")
_LOGSUMEXP = op("logsumexp")


def _require_axis(name: str, axis: int) -> None:
    if axis not in (0, 1, -1):
        raise errors.NodeValueError(f"{name}: axis {axis!r} is given; 0 (over rows) or 1 (over cols) is required")


def softmax(x: Node, axis: int = 1, mask: Any = None, *, causal: bool = False, window: Window = None) -> Node:
    """exp(x) / Σ exp(x) over columns (1) or rows (0).

    Args:
        x: Any shape.
        axis: What adds up to 1: every row (1) or every column (0).
        mask: A boolean array of x's shape, or one that NumPy broadcasts to it: False entries get 0. Where all are
            masked the result is 0, and so is the gradient.
        causal: Whether a row counts columns up to its own position only; the last row has the position of the last
            column. With axis 1 only.
        window: How many positions before and after its own a row counts; one number for both, or a pair.
    """
    if mask is not None:
        if not isinstance(x, Node):
            misuse("softmax", x)
        x = x + hiding("softmax", mask, x.shape)
    _require_axis("softmax", axis)
    try:
        return build(x.graph, _SOFTMAX, (x,), (axis_code("softmax", axis), *band_of("softmax", causal, window)))
    except AttributeError:
        misuse("softmax", x)


def log_softmax(x: Node, axis: int = 1) -> Node:
    """x - logsumexp(x) over columns (1) or rows (0)."""
    _require_axis("log_softmax", axis)
    return reduce("log_softmax", _LOG_SOFTMAX, x, axis)


def logsumexp(x: Node, axis: int | None = 1) -> Node:
    """log Σ exp(x) over columns (1: ``(rows, 1)``), rows (0: ``(1, cols)``) or all elements (None)."""
    return reduce("logsumexp", _LOGSUMEXP, x, axis)


@operator("sparsemax", x="node")
def sparsemax(x: Node) -> Node:
    """The point of the probability simplex nearest to each row (Martins and Astudillo 2016, From Softmax to Sparsemax)."""
    return build_unary("sparsemax", x)
