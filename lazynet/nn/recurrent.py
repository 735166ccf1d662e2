"""RNN, GRU and LSTM: cells of one step, and sequences, several layers deep and in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from .. import errors, init
from ..cell import cell
from ..graph import Graph
from ..module import Module
from ..node import Node
from ..nodes.dropout import dropout
from ..nodes.elementwise import relu, sigmoid, tanh
from ..nodes.linear import linear
from ..nodes.shape import concat, split
from ..parameter import Parameter

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "LSTMState", "RNNCell"]

State = TypeVar("State")


class LSTMState(NamedTuple):
    """Hidden state h and memory c."""

    h: Node
    c: Node


# ---- one step, from the projected input: the equations of the papers


def _rnn_step(x: Node, h: Node, hidden: Callable[[Node], Node], activation: Callable[[Node], Node]) -> Node:
    return activation(x + hidden(h))


def _lstm_step(x: Node, state: LSTMState, hidden: Callable[[Node], Node]) -> LSTMState:
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000; gates i f g o."""
    i, f, g, o = split(x + hidden(state.h), 4)
    c = sigmoid(f) * state.c + sigmoid(i) * tanh(g)
    return LSTMState(sigmoid(o) * tanh(c), c)


def _gru_step(x: Node, h: Node, hidden: Callable[[Node], Node]) -> Node:
    """Cho et al. 2014, in PyTorch's form: the reset gate acts on the projected hidden state; gates r z n."""
    x_r, x_z, x_n = split(x, 3)
    h_r, h_z, h_n = split(hidden(h), 3)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = tanh(x_n + r * h_n)
    return n + z * (h - n)


class _Cell(Module, Generic[State]):
    """Parameters of one step, under PyTorch's names."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = "float32") -> None:
        self.input_size, self.hidden_size = input_size, hidden_size
        bound = 1 / math.sqrt(max(hidden_size, 1))
        fill = init.uniform(-bound, bound)
        rows = self.gates * hidden_size
        self.weight_ih = Parameter((rows, input_size), fill, dtype=dtype)
        self.weight_hh = Parameter((rows, hidden_size), fill, dtype=dtype)
        self.bias_ih = Parameter((rows,), fill, dtype=dtype) if bias else None
        self.bias_hh = Parameter((rows,), fill, dtype=dtype) if bias else None

    def _input(self, x: Node) -> Node:
        return linear(x, self.weight_ih, self.bias_ih, transpose=True)

    def _hidden(self, h: Node) -> Node:
        return linear(h, self.weight_hh, self.bias_hh, transpose=True)

    def _zero(self, x: Node) -> Node:
        return x.graph.constant(0.0, x.shape[0], self.hidden_size)


class RNNCell(_Cell[Node]):
    """tanh(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh) (Elman 1990).

    Args:
        input_size: Columns of x.
        hidden_size: Columns of h.
        bias: Whether biases are added.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype=dtype)
        self.activation = _activation(nonlinearity)

    def forward(self, x: Node, h: Node | None = None) -> Node:
        """One step; h is zero where it is left out."""
        return self._step(x, self._zero(x) if h is None else h)

    @cell
    def _step(self, x: Node, h: Node) -> Node:
        return _rnn_step(self._input(x), h, self._hidden, self.activation)


class LSTMCell(_Cell[LSTMState]):
    """One step of an LSTM, gates in the order i f g o.

    Args:
        input_size: Columns of x.
        hidden_size: Columns of h and c.
        bias: Whether biases are added.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> cell, graph = ln.nn.LSTMCell(3, 2), ln.Graph()
        >>> x = graph.input([[1.0, 2.0, 3.0]])
        >>> state = cell(x, cell(x))
        >>> state.h.shape, state.c.shape
        ((1, 2), (1, 2))
    """

    gates = 4

    def forward(self, x: Node, state: LSTMState | tuple[Node, Node] | None = None) -> LSTMState:
        """One step; the state is zero where it is left out."""
        if state is None:
            zero = self._zero(x)
            state = LSTMState(zero, zero)
        return self._step(x, LSTMState(*state))

    @cell
    def _step(self, x: Node, state: LSTMState) -> LSTMState:
        return _lstm_step(self._input(x), state, self._hidden)


class GRUCell(_Cell[Node]):
    """One step of a GRU, gates in the order r z n.

    Args:
        input_size: Columns of x.
        hidden_size: Columns of h.
        bias: Whether biases are added.
        dtype: Of the parameters.
    """

    gates = 3

    def forward(self, x: Node, h: Node | None = None) -> Node:
        """One step; h is zero where it is left out."""
        return self._step(x, h if h is not None else self._zero(x))

    @cell
    def _step(self, x: Node, h: Node) -> Node:
        return _gru_step(self._input(x), h, self._hidden)


def _activation(name: str) -> Callable[[Node], Node]:
    try:
        return {"tanh": tanh, "relu": relu}[name]
    except KeyError:
        raise errors.NodeValueError(f"RNN: nonlinearity {name!r} is given; 'tanh' or 'relu' is required") from None


class _Sequence(Module, Generic[State]):
    """Runs a step along a sequence, layer upon layer.

    Takes a list of ``(1, input_size)`` nodes or one ``(T, input_size)`` node, T at least 0, and returns outputs of the
    same kind, ``hidden_size`` columns for each direction, and the final states, a list: layer by layer, forward before
    backward. With T = 0 the outputs are empty and the final states zero.

    Args:
        input_size: Columns of the input.
        hidden_size: Columns of each direction's state.
        num_layers: Layers.
        bias: Whether biases are added.
        dropout: Rate of dropout on the outputs of each layer but the last.
        bidirectional: Whether a second pass runs from the end.
        dtype: Of the parameters.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = "float32",
    ) -> None:
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.dropout, self.bidirectional = bias, dropout, bidirectional
        bound = 1 / math.sqrt(max(hidden_size, 1))
        fill = init.uniform(-bound, bound)
        rows = self.gates * hidden_size
        directions = ["", "_reverse"] if bidirectional else [""]
        # The same strings at every call: calls of cells compare what is no node by identity.
        self._suffixes = [[f"_l{layer}{direction}" for direction in directions] for layer in range(num_layers)]
        for layer in range(num_layers):
            columns = input_size if layer == 0 else len(directions) * hidden_size
            for suffix in self._suffixes[layer]:
                setattr(self, f"weight_ih{suffix}", Parameter((rows, columns), fill, dtype=dtype))
                setattr(self, f"weight_hh{suffix}", Parameter((rows, hidden_size), fill, dtype=dtype))
                if bias:
                    setattr(self, f"bias_ih{suffix}", Parameter((rows,), fill, dtype=dtype))
                    setattr(self, f"bias_hh{suffix}", Parameter((rows,), fill, dtype=dtype))

    def _step(self, x: Node, state: State, hidden: Callable[[Node], Node]) -> State:
        raise NotImplementedError

    @cell
    def _cell(self, x: Node, state: State, suffix: str) -> State:
        """One step of a layer and direction, from the projected input."""
        weight, bias = getattr(self, f"weight_hh{suffix}"), getattr(self, f"bias_hh{suffix}", None)
        return self._step(x, state, lambda h: linear(h, weight, bias, transpose=True))

    def _zero(self, graph: Graph) -> State:
        raise NotImplementedError

    def _output(self, state: State) -> Node:
        raise NotImplementedError

    def forward(
        self, x: Node | Sequence[Node], initial: Sequence[State] | None = None, graph: Graph | None = None
    ) -> tuple[Any, list[State]]:
        """Outputs of every step and the final states.

        Args:
            x: The sequence: a list of ``(1, input_size)`` nodes, or one ``(T, input_size)`` node.
            initial: A state for each layer and direction, zero where left out.
            graph: Only needed for an empty list.
        """
        one_node = isinstance(x, Node)
        steps = list(x) if not isinstance(x, Node) else []
        graph = x.graph if isinstance(x, Node) else graph or self._graph_of(steps)
        length = x.shape[0] if isinstance(x, Node) else len(steps)
        layer_input: Node | None = x if isinstance(x, Node) else concat(steps, axis=0) if steps else None
        finals: list[State] = []
        outputs: list[Node] = []
        for layer in range(self.num_layers):
            passes = []
            for direction, suffix in enumerate(self._suffixes[layer]):
                state = initial[len(finals)] if initial is not None else self._zero(graph)
                states = self._run(layer_input, length, state, suffix, reverse=direction == 1)
                finals.append(states[0 if direction == 1 else -1] if states else state)
                passes.append([self._output(each) for each in states])
            outputs = [concat(pair) for pair in zip(*passes, strict=True)] if self.bidirectional else passes[0]
            if self.dropout and self.training and layer < self.num_layers - 1:
                outputs = [dropout(output, self.dropout) for output in outputs]
            if outputs and (layer < self.num_layers - 1 or one_node):
                layer_input = concat(outputs, axis=0)
        if not one_node:
            return outputs, finals
        columns = self.hidden_size * (2 if self.bidirectional else 1)
        return (layer_input if outputs else graph.constant(0.0, 0, columns)), finals

    @staticmethod
    def _graph_of(steps: list[Node]) -> Graph:
        if not steps:
            raise errors.NodeValueError("sequence: an empty list is given; pass graph= with it")
        return steps[0].graph

    def _run(self, x: Node | None, length: int, state: State, suffix: str, reverse: bool) -> list[State]:
        """The states after each step, in the order of the sequence."""
        if x is None or length == 0:
            return []
        # The input of all steps is projected at once; a step reads its row, which is a view.
        projected = linear(
            x, getattr(self, f"weight_ih{suffix}"), getattr(self, f"bias_ih{suffix}", None), transpose=True
        )
        states = []
        rows = split(projected, length, axis=0)
        for row in reversed(rows) if reverse else rows:
            state = self._cell(row, state, suffix)
            states.append(state)
        return states[::-1] if reverse else states


class LSTM(_Sequence[LSTMState]):
    """An LSTM over a sequence; parameters as in ``torch.nn.LSTM``.

    Example:
        >>> import lazynet as ln
        >>> lstm, graph = ln.nn.LSTM(3, 2, bidirectional=True), ln.Graph()
        >>> outputs, finals = lstm(graph.input([[1.0, 2.0, 3.0]] * 5))
        >>> outputs.shape, len(finals)
        ((5, 4), 2)
    """

    gates = 4

    def _step(self, x: Node, state: LSTMState, hidden: Callable[[Node], Node]) -> LSTMState:
        return _lstm_step(x, state, hidden)

    def _zero(self, graph: Graph) -> LSTMState:
        zero = graph.constant(0.0, 1, self.hidden_size)
        return LSTMState(zero, zero)

    def _output(self, state: LSTMState) -> Node:
        return state.h


class GRU(_Sequence[Node]):
    """A GRU over a sequence; parameters as in ``torch.nn.GRU``."""

    gates = 3

    def _step(self, x: Node, state: Node, hidden: Callable[[Node], Node]) -> Node:
        return _gru_step(x, state, hidden)

    def _zero(self, graph: Graph) -> Node:
        return graph.constant(0.0, 1, self.hidden_size)

    def _output(self, state: Node) -> Node:
        return state


class RNN(GRU):
    """An Elman RNN with tanh over a sequence; parameters as in ``torch.nn.RNN``."""

    gates = 1

    def _step(self, x: Node, state: Node, hidden: Callable[[Node], Node]) -> Node:
        return _rnn_step(x, state, hidden, tanh)
