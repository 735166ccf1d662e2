"""Tree-LSTMs (Tai et al. 2015, Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import errors, init
from ..cell import cell
from ..module import Module
from ..node import Node
from ..nodes.elementwise import sigmoid, tanh
from ..nodes.linear import linear
from ..nodes.reduce import sum
from ..nodes.shape import concat, split
from ..parameter import Parameter
from ..recur import Structure, recur
from .recurrent import LSTMState

__all__ = ["BinaryTreeLSTMCell", "ChildSumTreeLSTMCell", "TreeLSTM"]


def _memory(iou: Node, forgotten: Node | None = None) -> LSTMState:
    """c = σ(i) tanh(u) + what is kept of the children; h = σ(o) tanh(c)."""
    i, o, u = split(iou, 3)
    c = sigmoid(i) * tanh(u)
    if forgotten is not None:
        c = c + forgotten
    return LSTMState(sigmoid(o) * tanh(c), c)


class BinaryTreeLSTMCell(Module):
    """The binary tree-LSTM: a leaf reads a word, an inner node its two children.

    Gates of a leaf come from ``x W + b``, those of an inner node from both children, ``[h₁ h₂] U + b``; each child has
    a forget gate of its own, ``σ(hₖ Fₖ + b_f)``.

    Args:
        dim: Columns of h and c.
        input_dim: Columns of a leaf's input; ``dim`` where left out.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> cell, graph = ln.nn.BinaryTreeLSTMCell(4), ln.Graph()
        >>> leaf = cell.leaf(graph.input([[1.0, 2.0, 3.0, 4.0]]))
        >>> cell(leaf, cell(leaf, leaf)).h.shape
        (1, 4)
    """

    def __init__(self, dim: int, input_dim: int | None = None, *, dtype: Any = "float32") -> None:
        inputs = dim if input_dim is None else input_dim
        leaf, inner, forget = (init.uniform(-b, b) for b in (1 / math.sqrt(n) for n in (inputs, 2 * dim, dim)))
        self.leaf_weight = Parameter((3 * dim, inputs), leaf, dtype=dtype)
        self.inner_weight = Parameter((3 * dim, 2 * dim), inner, dtype=dtype)
        self.bias = Parameter((3 * dim,), init.zeros, dtype=dtype)
        self.forget_left = Parameter((dim, dim), forget, dtype=dtype)
        self.forget_right = Parameter((dim, dim), forget, dtype=dtype)
        self.forget_bias = Parameter((dim,), init.ones, dtype=dtype)

    @cell
    def leaf(self, x: Node) -> LSTMState:
        """The state of a leaf from its word, ``(1, input_dim)``."""
        return _memory(linear(x, self.leaf_weight, self.bias, transpose=True))

    @cell
    def forward(self, left: LSTMState, right: LSTMState) -> LSTMState:
        """The state of an inner node from its children's."""
        iou = linear(concat([left.h, right.h]), self.inner_weight, self.bias, transpose=True)
        f_left = sigmoid(linear(left.h, self.forget_left, self.forget_bias, transpose=True))
        f_right = sigmoid(linear(right.h, self.forget_right, self.forget_bias, transpose=True))
        return _memory(iou, f_left * left.c + f_right * right.c)


class ChildSumTreeLSTMCell(Module):
    """The child-sum tree-LSTM: a node with any number of children, in any order.

    Args:
        input_dim: Columns of a node's input.
        dim: Columns of h and c.
        dtype: Of the parameters.
    """

    def __init__(self, input_dim: int, dim: int, *, dtype: Any = "float32") -> None:
        inputs, hidden = (init.uniform(-b, b) for b in (1 / math.sqrt(n) for n in (input_dim, dim)))
        self.weight_iou = Parameter((3 * dim, input_dim), inputs, dtype=dtype)
        self.hidden_iou = Parameter((3 * dim, dim), hidden, dtype=dtype)
        self.bias_iou = Parameter((3 * dim,), init.zeros, dtype=dtype)
        self.weight_f = Parameter((dim, input_dim), inputs, dtype=dtype)
        self.hidden_f = Parameter((dim, dim), hidden, dtype=dtype)
        self.bias_f = Parameter((dim,), init.ones, dtype=dtype)

    @cell
    def forward(self, x: Node, children: Sequence[LSTMState] = ()) -> LSTMState:
        """The state of a node from its input and its children's states."""
        iou = linear(x, self.weight_iou, self.bias_iou, transpose=True)
        if not children:
            return _memory(iou)
        h = sum([child.h for child in children])
        own = linear(x, self.weight_f, self.bias_f, transpose=True)
        kept = [sigmoid(own + linear(child.h, self.hidden_f, transpose=True)) * child.c for child in children]
        return _memory(iou + linear(h, self.hidden_iou, transpose=True), sum(kept))


class TreeLSTM(Module):
    """A tree-LSTM over whole trees, or any structure in which children come before parents, placed in one call.

    Args:
        input_size: Columns of the input.
        hidden_size: Columns of h and c.
        kind: ``"binary"``: a leaf reads its row of the input, an inner place its two children (give rows of -1 to inner
            places); ``"child_sum"``: every place reads its row and any number of children.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> lstm, graph = ln.nn.TreeLSTM(3, 4), ln.Graph()
        >>> tree = ln.Structure([[], [], [0, 1]], rows=[0, 1, -1])
        >>> lstm(graph.input([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tree).stacked().h.shape
        (3, 4)
    """

    def __init__(self, input_size: int, hidden_size: int, kind: str = "binary", *, dtype: Any = "float32") -> None:
        if kind not in ("binary", "child_sum"):
            raise errors.NodeValueError(f"TreeLSTM: kind {kind!r} is given; 'binary' or 'child_sum' is required")
        self.kind = kind
        self.cell: Any = (
            BinaryTreeLSTMCell(hidden_size, input_size, dtype=dtype)
            if kind == "binary"
            else ChildSumTreeLSTMCell(input_size, hidden_size, dtype=dtype)
        )

    @cell
    def _step(self, x: Node | None, states: list[LSTMState]) -> LSTMState:
        if self.kind == "child_sum":
            return self.cell(x, states)
        if x is None and len(states) == 2:
            return self.cell(*states)
        if x is not None and not states:
            return self.cell.leaf(x)
        raise errors.NodeValueError(
            f"TreeLSTM: a place has {len(states)} children and {'no' if x is None else 'a'} row of the input; two and "
            "none, or none and one, are required"
        )

    def forward(self, x: Node, structure: Structure | Sequence[Sequence[int]]) -> Any:
        """The states of all places, see :func:`lazynet.recur`."""
        return recur(self._step, structure, x)
