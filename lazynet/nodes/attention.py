"""Attention and positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import errors
from ..node import Node
from .opdef import build, integer_of, misuse, number_of, op

__all__ = ["attention", "rotary"]

_ATTENTION, _ROTARY = op("attention"), op("rotary")

#: Positions before and after its own that a row sees; None for all.
Window = int | tuple[int | None, int | None] | None


def band_of(name: str, causal: bool, window: Window) -> tuple[float, float]:
    """How many positions before and after its own a row sees; infinity for all."""
    sides = window if isinstance(window, tuple) else (window, window)
    if len(sides) != 2:
        raise errors.NodeValueError(f"{name}: window={window!r} is given; a number, or two, or None is required")
    before, after = (math.inf if side is None else float(integer_of(name, "window", side)) for side in sides)
    if before < 0 or after < 0:
        raise errors.NodeValueError(f"{name}: window={window!r} is given; numbers of at least 0 are required")
    return before, 0.0 if causal else after


def hiding(name: str, mask: Any, shape: tuple[int, int]) -> np.ndarray:
    """What added to scores hides those where a boolean mask is False."""
    keep = np.asarray(mask)
    if keep.dtype != np.bool_:
        raise errors.NodeTypeError(f"{name}: a mask of type {keep.dtype} is given; booleans are required")
    try:
        return np.where(np.broadcast_to(keep, shape), 0.0, -np.inf)
    except ValueError:
        raise errors.ShapeError(
            f"{name}: a mask of shape {keep.shape} is given; one that fits {shape} is required"
        ) from None


def attention(
    query: Node,
    key: Node,
    value: Node,
    heads: int = 1,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window = None,
    bias: Node | None = None,
    mask: Any = None,
    dropout: float = 0.0,
    training: bool | None = None,
) -> Node:
    """softmax(Q Kᵀ · scale + bias) V for every head (Vaswani et al. 2017), each example with its own lengths.

    The scores are made tile by tile, forward and backward, and never stored (Dao et al. 2022, FlashAttention).

    Args:
        query: ``(n, heads · d)``; head h has columns h · d to (h + 1) · d.
        key: ``(m, heads · d)``; m may be 0, which gives zeros.
        value: ``(m, heads · e)``.
        heads: At least 1.
        scale: Of the scores; 1 / √d where left out.
        causal: Whether a query sees keys up to its own position only. Queries stand at the end: the last one has the
            position of the last key, so that those which continue a sequence see all of it.
        window: How many positions before and after its own a query sees; one number for both, or a pair.
        bias: Added to the scores: ``(n, m)`` for all heads, or ``(heads · n, m)``, head under head. -inf hides a key.
        mask: A boolean array of the scores' shape ``(n, m)``, or one that NumPy broadcasts to it: a query does not see
            the keys where it is False; one that sees none gets zeros. There is no padding to be masked.
        dropout: Rate of dropout on the probabilities.
        training: False: no dropout; None means what the graph was made for.

    Returns:
        ``(n, heads · e)``.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> x = graph.input([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> ln.attention(x, x, x, causal=True).value[0].tolist()
        [1.0, 0.0]
    """
    if not isinstance(query, Node):
        misuse("attention", query, key, value)
    before, after = band_of("attention", causal, window)
    graph, heads = query.graph, integer_of("attention", "heads", heads)
    if scale is None:
        scale = 1 / math.sqrt(max(query.cols / max(heads, 1), 1))
    rate = number_of("attention", "dropout", dropout)
    if not (graph.training if training is None else training):
        rate = 0.0
    if mask is not None:
        hidden = hiding("attention", mask, (query.rows, key.rows))
        if bias is None:
            bias = graph.input(hidden)
        else:
            bias = bias + (hidden if bias.rows == query.rows else np.tile(hidden, (heads, 1)))
    operands = (query, key, value) if bias is None else (query, key, value, bias)
    try:
        return build(graph, _ATTENTION, operands, (heads, number_of("attention", "scale", scale), before, after, rate))
    except AttributeError:
        misuse("attention", *operands)


def rotary(x: Node, heads: int = 1, *, start: int = 0, base: float = 10000.0, interleaved: bool = False) -> Node:
    """Rotates pairs of columns by angles that grow with the row's position (Su et al. 2021, RoFormer).

    Args:
        x: ``(n, heads · d)``, d even.
        heads: At least 1; all are rotated alike.
        start: The position of the first row.
        base: Pair j of a head turns by position / base^(2j/d).
        interleaved: Pairs are neighbours, as in the paper; else column j of a head goes with column j + d / 2, as in
            most models since.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> ln.rotary(graph.input([[1.0, 0.0], [0.0, 1.0]]), start=0).value[0].tolist()
        [1.0, 0.0]
    """
    if not isinstance(x, Node):
        misuse("rotary", x)
    if number_of("rotary", "base", base) <= 0:
        raise errors.NodeValueError(f"rotary: base={base} is given; a number above 0 is required")
    attributes = (integer_of("rotary", "heads", heads), base, float(bool(interleaved)))
    return build(x.graph, _ROTARY, (x,), attributes, (integer_of("rotary", "start", start),))
