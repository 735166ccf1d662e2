"""Convolution over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..node import Node
from .linear import linear
from .opdef import build, integer_of, misuse, op

if TYPE_CHECKING:
    from ..parameter import Parameter

__all__ = ["conv1d", "unfold"]

_UNFOLD = op("unfold_rows")


def unfold(x: Node, width: int, *, stride: int = 1, padding: int = 0, dilation: int = 1) -> Node:
    """Beside each other the rows that a filter sees at each of its places.

    Args:
        x: ``(T, channels)``, T at least 0.
        width: Rows of the filter.
        stride: Rows from one place to the next.
        padding: Rows of zeros put before and after x.
        dilation: Rows from one of the filter's to the next.

    Returns:
        ``(places, channels · width)``: all rows of the first channel, then those of the next. No places where x is
        shorter than the filter.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> ln.unfold(graph.input([[1.0], [2.0], [3.0]]), 2).value.tolist()
        [[1.0, 2.0], [2.0, 3.0]]
    """
    if not isinstance(x, Node):
        misuse("unfold", x)
    sizes = (("width", width), ("stride", stride), ("padding", padding), ("dilation", dilation))
    return build(x.graph, _UNFOLD, (x,), [float(integer_of("unfold", name, size)) for name, size in sizes])


def conv1d(
    x: Node,
    weight: Parameter | Node,
    bias: Parameter | Node | None = None,
    *,
    width: int,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> Node:
    """Convolution over rows, all places of all examples in one product.

    Args:
        x: ``(T, in)``.
        weight: ``(out, in · width)``, as PyTorch's ``(out, in, width)`` lies in memory.
        bias: ``(1, out)``.
        width: Rows of the filter.
        stride: As in :func:`unfold`.
        padding: As in :func:`unfold`.
        dilation: As in :func:`unfold`.

    Returns:
        ``(places, out)``.
    """
    unfolded = unfold(x, width, stride=stride, padding=padding, dilation=dilation)
    return linear(unfolded, weight, bias, transpose=True)
