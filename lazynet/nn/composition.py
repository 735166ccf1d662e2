"""Encoders made of encoders, and recurrent states that can go back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import errors
from ..graph import Graph
from ..module import Module
from ..node import Node
from ..nodes.shape import concat
from .recurrent import LSTMCell, LSTMState

__all__ = ["HierarchicalEncoder", "StackLSTM", "StackState"]


class HierarchicalEncoder(Module):
    """A document from its sentences (Yang et al. 2016): each becomes a row, and the rows are encoded in turn.

    Sentences of all documents run together, whatever their lengths.

    Args:
        sentence: Called with ``(graph, sentence)``; returns ``(1, d)``.
        document: Called with ``(sentences, d)``; what it returns is the result.

    Example:
        >>> import lazynet as ln
        >>> embed = ln.nn.Embedding(9, 3)
        >>> encoder = ln.nn.HierarchicalEncoder(
        ...     lambda graph, words: ln.pool(embed(graph, words), "mean"), lambda rows: ln.pool(rows, "max"))
        >>> encoder(ln.Graph(), [[1, 2, 3], [4]]).shape
        (1, 3)
    """

    def __init__(self, sentence: Callable[[Graph, Any], Node], document: Callable[[Node], Any]) -> None:
        self.sentence, self.document = sentence, document

    def forward(self, graph: Graph, sentences: Sequence[Any]) -> Any:
        """The document's encoding; at least one sentence is required."""
        if not sentences:
            raise errors.NodeValueError("HierarchicalEncoder: no sentences are given; at least one is required")
        return self.document(concat([self.sentence(graph, sentence) for sentence in sentences], axis=0))


class StackState:
    """A stack as it is now; pushing makes another and leaves this one as it is.

    Attributes:
        h: Output at the top, ``(1, hidden_size)``; of the empty stack zeros.
        below: The stack before the last push; None of the empty one.
    """

    __slots__ = ("_owner", "_state", "below", "item")

    def __init__(self, owner: StackLSTM, state: LSTMState, below: StackState | None, item: Any) -> None:
        self._owner, self._state, self.below, self.item = owner, state, below, item

    @property
    def h(self) -> Node:
        """Output at the top."""
        return self._state.h

    def push(self, x: Node, item: Any = None) -> StackState:
        """The stack with x, ``(1, input_size)``, on top; ``item`` is whatever the caller wants to find there."""
        return StackState(self._owner, self._owner.cell(x, self._state), self, item)

    def pop(self) -> StackState:
        """The stack without its top; costs nothing."""
        if self.below is None:
            raise errors.NodeValueError("StackLSTM: pop from an empty stack; something to pop is required")
        return self.below

    def __len__(self) -> int:
        depth, below = 0, self.below
        while below is not None:
            depth, below = depth + 1, below.below
        return depth


class StackLSTM(Module):
    """An LSTM whose state is a stack, for transition parsers (Dyer et al. 2015).

    Args:
        input_size: Columns of what is pushed.
        hidden_size: Columns of the output.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> stacks, graph = ln.nn.StackLSTM(2, 3), ln.Graph()
        >>> empty = stacks.empty(graph)
        >>> one = empty.push(graph.input([[1.0, 2.0]]))
        >>> two = one.push(graph.input([[3.0, 4.0]]))
        >>> len(two), two.pop() is one, two.h.shape
        (2, True, (1, 3))
    """

    def __init__(self, input_size: int, hidden_size: int, *, dtype: Any = "float32") -> None:
        self.cell = LSTMCell(input_size, hidden_size, dtype=dtype)

    def empty(self, graph: Graph) -> StackState:
        """A stack that holds nothing."""
        zero = graph.constant(0.0, 1, self.cell.hidden_size)
        return StackState(self, LSTMState(zero, zero), None, None)
