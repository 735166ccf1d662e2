"""Normalization over the columns of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors
from ..node import Node
from .opdef import build, misuse, number_of, op

if TYPE_CHECKING:
    from ..parameter import Parameter

__all__ = ["layer_norm", "rms_norm"]

_LAYER_NORM, _RMS_NORM = op("layer_norm"), op("rms_norm")


def _require_positive(name: str, eps: float) -> None:
    if not number_of(name, "eps", eps) > 0:
        raise errors.NodeValueError(f"{name}: eps={eps} is given; more than 0 is required")


def layer_norm(
    x: Node, weight: Parameter | Node | None = None, bias: Parameter | Node | None = None, eps: float = 1e-5
) -> Node:
    """(x - mean) / √(variance + eps) · weight + bias, row by row (Ba et al. 2016, Layer Normalization).

    Args:
        x: ``(rows, cols)``.
        weight: ``(1, cols)`` or None.
        bias: ``(1, cols)`` or None; only with a weight.
        eps: More than 0.
    """
    _require_positive("layer_norm", eps)
    if bias is not None and weight is None:
        raise errors.NodeValueError("layer_norm: a bias without a weight is given; give both or the weight alone")
    try:
        operands = [operand for operand in (x, weight, bias) if operand is not None]
        return build(x.graph, _LAYER_NORM, operands, (eps,))
    except AttributeError:
        misuse("layer_norm", x, weight, bias)


def rms_norm(x: Node, weight: Parameter | Node | None = None, eps: float = 1e-6) -> Node:
    """x / √(mean of squares + eps) · weight, row by row (Zhang and Sennrich 2019).

    Args:
        x: ``(rows, cols)``.
        weight: ``(1, cols)`` or None.
        eps: More than 0.
    """
    _require_positive("rms_norm", eps)
    try:
        return build(x.graph, _RMS_NORM, (x,) if weight is None else (x, weight), (eps,))
    except AttributeError:
        misuse("rms_norm", x, weight)
