"""Settings that several ways of decoding take, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import errors
from ..nodes.opdef import integer_of

__all__ = ["MaxLength", "at_least", "limits"]

#: The most tokens of an output, ``end`` included, or a function of the source that says so.
MaxLength = int | Callable[[Any], int]


def at_least(least: int, name: str, what: str, value: Any) -> int:
    """An integer that was given, not below ``least``."""
    if integer_of(name, what, value) < least:
        raise errors.NodeValueError(f"{name}: {what} {value} is given; at least {least} is required")
    return int(value)


def limits(name: str, max_length: MaxLength, sources: Sequence[Any]) -> list[int]:
    """``max_length`` of every source."""
    each = [max_length(source) if callable(max_length) else max_length for source in sources]
    return [at_least(0, name, "max_length", length) for length in each]
