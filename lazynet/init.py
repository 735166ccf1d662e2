"""Initialisers: callables of (shape, random generator) that return an array.

``shape`` is ``(out, in)`` for a weight, as PyTorch keeps it; fan-in is the last size, fan-out the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import errors

__all__ = [
    "Initializer", "constant", "from_array", "he_normal", "he_uniform", "normal", "ones", "orthogonal", "seed",
    "uniform", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip

Shape = tuple[int, ...]
Initializer = Callable[[Shape, np.random.Generator], np.ndarray]

_generator = np.random.default_rng()


def seed(number: int) -> None:
    """Makes the initial values of all parameters created from now on repeatable."""
    global _generator
    _generator = np.random.default_rng(number)


def generator() -> np.random.Generator:
    """The generator that parameters are initialised with."""
    return _generator


def _fans(shape: Shape) -> tuple[int, int]:
    return max(shape[-1], 1), max(shape[0] if len(shape) > 1 else shape[-1], 1)


def uniform(low: float, high: float) -> Initializer:
    """Uniform on [low, high)."""
    return lambda shape, rng: rng.uniform(low, high, shape)


def normal(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Normal with the given mean and standard deviation."""
    return lambda shape, rng: rng.normal(mean, std, shape)


def xavier_uniform(gain: float = 1.0) -> Initializer:
    """Uniform on ±gain √(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def make(shape: Shape, rng: np.random.Generator) -> np.ndarray:
        bound = gain * math.sqrt(6 / sum(_fans(shape)))
        return rng.uniform(-bound, bound, shape)

    return make


def xavier_normal(gain: float = 1.0) -> Initializer:
    """Normal with standard deviation gain √(2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""
    return lambda shape, rng: rng.normal(0, gain * math.sqrt(2 / sum(_fans(shape))), shape)


def he_uniform(gain: float = math.sqrt(2)) -> Initializer:
    """Uniform on ±gain √(3 / fan_in) (He et al. 2015)."""

    def make(shape: Shape, rng: np.random.Generator) -> np.ndarray:
        bound = gain * math.sqrt(3 / _fans(shape)[0])
        return rng.uniform(-bound, bound, shape)

    return make


def he_normal(gain: float = math.sqrt(2)) -> Initializer:
    """Normal with standard deviation gain / √fan_in (He et al. 2015)."""
    return lambda shape, rng: rng.normal(0, gain / math.sqrt(_fans(shape)[0]), shape)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Orthonormal rows or columns, times gain (Saxe et al. 2014)."""

    def make(shape: Shape, rng: np.random.Generator) -> np.ndarray:
        if len(shape) != 2:
            raise errors.ShapeError(f"orthogonal: shape {shape} is given; two dimensions are required")
        rows, cols = shape
        q, r = np.linalg.qr(rng.normal(size=(max(rows, cols), min(rows, cols))))
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        return gain * (q if rows >= cols else q.T)

    return make


def constant(value: float) -> Initializer:
    """Every element the same."""
    return lambda shape, rng: np.full(shape, value)


def zeros(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Zero everywhere."""
    return np.zeros(shape)


def ones(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """One everywhere."""
    return np.ones(shape)


def from_array(array: Any) -> Initializer:
    """A copy of an array of the parameter's shape."""

    def make(shape: Shape, rng: np.random.Generator) -> np.ndarray:
        values = np.asarray(array)
        if values.shape != tuple(shape):
            raise errors.ShapeError(f"from_array: shape {values.shape} is given; {tuple(shape)} is required")
        return values

    return make
