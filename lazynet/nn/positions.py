"""Positions of rows, for models that do not see their order."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from .. import errors, init
from ..device import Device
from ..module import Module
from ..node import Node
from ..parameter import Parameter

__all__ = ["LearnedPositions", "SinusoidalPositions"]


@lru_cache(maxsize=16)
def _sinusoids(length: int, dim: int, dtype: str, device: Device) -> Parameter:
    position, pair = np.arange(length)[:, None], np.arange(0, dim, 2)
    angle = position * np.exp(pair * (-math.log(10000.0) / dim))
    table = np.zeros((length, dim))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : dim // 2]
    return Parameter(table, name="sinusoidal positions", dtype=dtype, trainable=False, device=device)


class SinusoidalPositions(Module):
    """Adds sines and cosines of the position, of wave lengths from 2π to 10000 · 2π (Vaswani et al. 2017).

    Has no parameters and no longest sentence.

    Example:
        >>> import lazynet as ln
        >>> x = ln.Graph().input([[0.0, 0.0], [0.0, 0.0]])
        >>> ln.nn.SinusoidalPositions()(x).value.tolist()[0]
        [0.0, 1.0]
    """

    def forward(self, x: Node, start: int = 0) -> Node:
        """``(T, dim)`` in, the same out.

        Args:
            x: The rows.
            start: The position of the first.
        """
        end = start + x.rows
        length = max(64, 1 << (end - 1).bit_length())
        table = _sinusoids(length, x.cols, x.graph.dtype.name, x.graph.device)
        return x + x.graph.parameter(table)[start:end]


class LearnedPositions(Module):
    """Adds a learned vector for every position.

    Args:
        max_length: Positions that have one.
        dim: Columns.
        dtype: Of the parameter.
    """

    def __init__(self, max_length: int, dim: int, *, dtype: Any = "float32") -> None:
        self.weight = Parameter((max_length, dim), init.normal(0, 0.02), dtype=dtype)

    def forward(self, x: Node, start: int = 0) -> Node:
        """``(T, dim)`` in, the same out; see :meth:`SinusoidalPositions.forward`."""
        end = start + x.rows
        if end > self.weight.shape[0]:
            raise errors.ShapeError(
                f"LearnedPositions: position {end - 1} is asked for; less than {self.weight.shape[0]} is required"
            )
        return x + x.graph.parameter(self.weight)[start:end]
