"""Convolution over the rows of a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import init
from ..module import Module
from ..node import Node
from ..nodes.convolution import conv1d
from ..nodes.elementwise import relu
from ..nodes.pooling import pool
from ..nodes.shape import concat
from ..parameter import Parameter

__all__ = ["Conv1d", "ConvolutionalEncoder"]


class Conv1d(Module):
    """Convolution over rows; parameters as in ``torch.nn.Conv1d``, whose (channels, length) is (T, channels) here.

    Args:
        in_channels: Columns of the input.
        out_channels: Columns of the output.
        kernel_size: Rows of the filter.
        stride: Rows from one place to the next.
        padding: Rows of zeros put before and after.
        dilation: Rows from one of the filter's to the next.
        bias: Whether a bias is added.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> ln.nn.Conv1d(2, 5, 3, padding=1)(ln.Graph().input([[1.0, 2.0]] * 4)).shape
        (4, 5)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ) -> None:
        self.sizes = {"width": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
        bound = 1 / math.sqrt(max(in_channels * kernel_size, 1))
        fill = init.uniform(-bound, bound)
        self.weight = Parameter((out_channels, in_channels, kernel_size), fill, dtype=dtype)
        self.bias = Parameter((out_channels,), fill, dtype=dtype) if bias else None

    def forward(self, x: Node) -> Node:
        """``(T, in_channels)`` to ``(places, out_channels)``."""
        return conv1d(x, self.weight, self.bias, **self.sizes)


class ConvolutionalEncoder(Module):
    """A sentence as the largest values of filters of several widths (Kim 2014).

    Args:
        input_size: Columns of the input.
        filters: Number of filters of each width.
        widths: Rows of the filters. Sentences are padded with zeros, so that the widest filter has a place even in a
            sentence of one word.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> ln.nn.ConvolutionalEncoder(2, 5)(ln.Graph().input([[1.0, 2.0]] * 4)).shape
        (1, 15)
    """

    def __init__(
        self, input_size: int, filters: int, widths: Sequence[int] = (3, 4, 5), *, dtype: Any = "float32"
    ) -> None:
        self.convolutions = [Conv1d(input_size, filters, n, padding=n - 1, dtype=dtype) for n in widths]

    def forward(self, x: Node) -> Node:
        """``(T, input_size)``, T at least 0, to ``(1, filters · len(widths))``."""
        return concat([pool(relu(convolution(x)), "max") for convolution in self.convolutions])
