"""What keeps a state dict from being loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Expected", "differences"]


class Expected(NamedTuple):
    """What an entry must be: its shape, ``()`` for a number, and its element type where that matters."""

    shape: tuple[int, ...] = ()
    dtype: np.dtype | None = None


def differences(
    expected: Mapping[str, Expected], given: Mapping[str, Any], *, strict: bool = True, cast: bool = True
) -> str:
    """Every missing, unexpected, misshapen and mistyped entry in one line, empty where all fit.

    Args:
        expected: By name.
        given: Numbers, arrays or anything that NumPy turns into one.
        strict: False passes over missing and unexpected names.
        cast: False requires the expected element type.

    Example:
        >>> differences({"a": Expected((2,)), "b": Expected()}, {"a": [1.0], "c": 2})
        'missing: b; unexpected: c; misshapen: a (1,) of float64 instead of (2,)'
    """
    arrays = {name: np.asarray(value) for name, value in given.items() if name in expected}
    found: dict[str, list[str]] = {
        "missing": [name for name in expected if name not in given] if strict else [],
        "unexpected": [str(name) for name in given if name not in expected] if strict else [],
        "misshapen": [],
        "mistyped": [],
    }
    for name, array in arrays.items():
        shape, dtype = expected[name]
        if array.shape != shape or array.dtype.kind not in "fiub":
            found["misshapen"].append(f"{name} {array.shape} of {array.dtype} instead of {shape}")
        elif not cast and dtype is not None and array.dtype != dtype:
            found["mistyped"].append(f"{name} {array.dtype} instead of {dtype}")
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items() if names)
