"""Attention: of several heads, and the kinds that recurrent decoders use."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import errors, init
from ..module import Module
from ..node import Node
from ..nodes.attention import Window, attention, rotary
from ..nodes.elementwise import tanh
from ..nodes.linear import linear, matmul
from ..nodes.shape import concat, reshape, split, take_rows
from ..nodes.softmax import softmax
from ..parameter import Parameter
from .layers import Linear

__all__ = ["AdditiveAttention", "BilinearAttention", "DotAttention", "KeysValues", "MultiheadAttention"]


class KeysValues(NamedTuple):
    """Projected keys ``(m, embed_dim)`` and values ``(m, embed_dim)``: what a decoder keeps between its steps."""

    keys: Node
    values: Node


class MultiheadAttention(Module):
    """Attention of several heads with learned projections (Vaswani et al. 2017).

    Parameters as in ``torch.nn.MultiheadAttention``; there is no padding and therefore no padding mask.

    Args:
        embed_dim: Columns of queries and of the result.
        num_heads: Divides ``embed_dim``.
        dropout: Rate of dropout on the probabilities.
        bias: Whether the projections add biases.
        kdim: Columns of the keys, ``embed_dim`` where left out.
        vdim: Columns of the values, ``embed_dim`` where left out.
        rotary_base: Rotates queries and keys by their positions with this base (see :func:`lazynet.rotary`); not in
            PyTorch. For self-attention.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> attend, graph = ln.nn.MultiheadAttention(4, 2), ln.Graph()
        >>> x = graph.input([[1.0, 2.0, 3.0, 4.0]] * 3)
        >>> attend(x, x, x, is_causal=True).shape
        (3, 4)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        *,
        rotary_base: float | None = None,
        dtype: Any = "float32",
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise errors.NodeValueError(
                f"MultiheadAttention: embed_dim {embed_dim} and {num_heads} heads are given; "
                "a number of heads that divides embed_dim is required"
            )
        self.embed_dim, self.num_heads, self.dropout, self.rotary_base = embed_dim, num_heads, dropout, rotary_base
        kdim, vdim = kdim or embed_dim, vdim or embed_dim
        self.same = kdim == vdim == embed_dim
        fill = init.xavier_uniform()
        if self.same:
            self.in_proj_weight = Parameter((3 * embed_dim, embed_dim), fill, dtype=dtype)
        else:
            self.q_proj_weight = Parameter((embed_dim, embed_dim), fill, dtype=dtype)
            self.k_proj_weight = Parameter((embed_dim, kdim), fill, dtype=dtype)
            self.v_proj_weight = Parameter((embed_dim, vdim), fill, dtype=dtype)
        self.in_proj_bias = Parameter((3 * embed_dim,), init.zeros, dtype=dtype) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        if self.out_proj.bias is not None:
            self.out_proj.bias.value = np.zeros(self.out_proj.bias.shape)

    def _project(self, x: Node, first: int, parts: int = 1) -> list[Node]:
        """Projections ``first`` and those after it: 0 the queries', 1 the keys', 2 the values'."""
        dim, graph = self.embed_dim, x.graph
        rows = slice(first * dim, (first + parts) * dim)
        if self.same:
            whole = parts == 3
            weight: Any = self.in_proj_weight if whole else graph.parameter(self.in_proj_weight)[rows]
        else:
            weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[first]
        bias: Any = self.in_proj_bias
        if bias is not None and parts < 3:
            bias = graph.parameter(bias)[:, rows]
        projected = linear(x, weight, bias, transpose=True)
        return split(projected, parts) if parts > 1 else [projected]

    def keys_values(self, key: Node, value: Node | None = None) -> KeysValues:
        """Keys and values projected, for :meth:`attend`; worth keeping where several queries attend to them."""
        if self.same and (value is None or value is key):
            keys, values = self._project(key, 1, 2)
        else:
            keys, values = self._project(key, 1)[0], self._project(key if value is None else value, 2)[0]
        return KeysValues(keys if self.rotary_base is None else self._rotate(keys, 0), values)

    def attend(
        self,
        query: Node,
        to: KeysValues,
        attn_mask: Node | None = None,
        is_causal: bool = False,
        window: Window = None,
    ) -> Node:
        """The result for ``(n, embed_dim)`` queries and what :meth:`keys_values` gave."""
        projected = self._project(query, 0)[0]
        if self.rotary_base is not None:
            projected = self._rotate(projected, to.keys.rows - query.rows)
        return self._result(projected, to, attn_mask, is_causal, window)

    def extend(self, x: Node, before: KeysValues | None) -> tuple[Node, KeysValues]:
        """Self-attention of rows that continue a sequence: the result, and keys and values of all rows so far.

        Args:
            x: ``(n, embed_dim)``, the rows that are new.
            before: What the call for the rows before gave; None at the start.
        """
        query, keys, values = self._qkv(x, 0 if before is None else before.keys.rows)
        if before is not None:
            keys, values = concat([before.keys, keys], axis=0), concat([before.values, values], axis=0)
        to = KeysValues(keys, values)
        return self._result(query, to, None, True, None), to

    def forward(
        self,
        query: Node,
        key: Node | None = None,
        value: Node | None = None,
        attn_mask: Node | None = None,
        is_causal: bool = False,
        window: Window = None,
    ) -> Node:
        """The result of every query.

        Args:
            query: ``(n, embed_dim)``.
            key: ``(m, kdim)``; the query where left out.
            value: ``(m, vdim)``; the key where left out.
            attn_mask: Added to the scores: a node ``(n, m)``, or ``(num_heads · n, m)``; -inf hides.
            is_causal: Whether a query sees keys up to its own position only, see :func:`lazynet.attention`.
            window: How many positions before and after its own a query sees.

        Returns:
            ``(n, embed_dim)``, the node alone: the probabilities never exist as a whole.
        """
        if self.same and (key is None or key is query) and (value is None or value is query):
            projected, keys, values = self._qkv(query, 0)
            return self._result(projected, KeysValues(keys, values), attn_mask, is_causal, window)
        return self.attend(query, self.keys_values(query if key is None else key, value), attn_mask, is_causal, window)

    def _qkv(self, x: Node, start: int) -> tuple[Node, Node, Node]:
        if not self.same:
            query, keys, values = (self._project(x, part)[0] for part in range(3))
        else:
            query, keys, values = self._project(x, 0, 3)
        if self.rotary_base is not None:
            query, keys = self._rotate(query, start), self._rotate(keys, start)
        return query, keys, values

    def _rotate(self, x: Node, start: int) -> Node:
        return rotary(x, self.num_heads, start=start, base=self.rotary_base or 0.0)

    def _result(self, query: Node, to: KeysValues, attn_mask: Node | None, is_causal: bool, window: Window) -> Node:
        training = None if self.training else False
        attended = attention(
            query, to.keys, to.values, self.num_heads, causal=is_causal, window=window, bias=attn_mask,
            dropout=self.dropout, training=training,
        )  # fmt: skip
        return self.out_proj(attended)


class DotAttention(Module):
    """Attention with scores q · k, for decoders with recurrent states (Luong et al. 2015).

    Args:
        scale: Of the scores.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> keys = graph.input([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> ln.nn.DotAttention()(graph.input([[0.0, 0.0]]), keys, graph.input([[1.0], [2.0], [6.0]])).value.tolist()
        [[3.0]]
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def forward(self, query: Node, keys: Node, values: Node | None = None) -> Node:
        """Weighted means of the values, ``(n, e)``.

        Args:
            query: ``(n, d)``.
            keys: ``(m, d)``.
            values: ``(m, e)``; the keys where left out.
        """
        return attention(query, keys, keys if values is None else values, scale=self.scale)


class BilinearAttention(Module):
    """Attention with scores q W k, "general" in Luong et al. 2015.

    Args:
        query_size: Columns of queries.
        key_size: Columns of keys.
        dtype: Of the parameters.
    """

    def __init__(self, query_size: int, key_size: int, *, dtype: Any = "float32") -> None:
        self.weight = Parameter((query_size, key_size), init.xavier_uniform(), dtype=dtype)

    def forward(self, query: Node, keys: Node, values: Node | None = None) -> Node:
        """As :meth:`DotAttention.forward`."""
        return attention(linear(query, self.weight), keys, keys if values is None else values, scale=1.0)


class AdditiveAttention(Module):
    """Attention with scores v · tanh(W q + U k) (Bahdanau et al. 2015).

    Args:
        query_size: Columns of queries.
        key_size: Columns of keys.
        hidden_size: Columns inside the tanh.
        dtype: Of the parameters.
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int, *, dtype: Any = "float32") -> None:
        self.query = Linear(query_size, hidden_size, bias=False, dtype=dtype)
        self.key = Linear(key_size, hidden_size, dtype=dtype)
        bound = 1 / math.sqrt(max(hidden_size, 1))
        self.weight = Parameter((1, hidden_size), init.uniform(-bound, bound), dtype=dtype)

    def forward(self, query: Node, keys: Node, values: Node | None = None) -> Node:
        """As :meth:`DotAttention.forward`; takes memory for n · m rows."""
        n, m = query.rows, keys.rows
        left, right = self.query(query), self.key(keys)
        if n != 1:  # else one row is added to all
            left = take_rows(left, [i for i in range(n) for _ in range(m)])
            right = take_rows(right, list(range(m)) * n)
        scores = reshape(linear(tanh(left + right), self.weight, transpose=True), n, m)
        return matmul(softmax(scores), keys if values is None else values)
