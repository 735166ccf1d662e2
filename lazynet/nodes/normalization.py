"""Normalization over the columns of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors
from ..node import Node
from .opdef import build, misuse, number_of, op

if TYPE_CHECKING:
    from ..parameter import Parameter

__all__ = ["layer_norm"]

_LAYER_NORM = op("layer_norm")


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
    if not number_of("layer_norm", "eps", eps) > 0:
        raise errors.NodeValueError(f"layer_norm: eps={eps} is given; more than 0 is required")
    if bias is not None and weight is None:
        raise errors.NodeValueError("layer_norm: a bias without a weight is given; give both or the weight alone")
    try:
        operands = [operand for operand in (x, weight, bias) if operand is not None]
        return build(x.graph, _LAYER_NORM, operands, (eps,))
    except AttributeError:
        misuse("layer_norm", x, weight, bias)
