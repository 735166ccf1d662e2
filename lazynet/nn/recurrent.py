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
from ..recur import Structure, recur

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
        if not isinstance(x, Node):
            raise errors.NodeTypeError(f"{type(self).__name__}: {type(x).__name__} is given; a node is required")
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
    _parts = 1  # nodes of a state

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
    def _cell(self, x: Node, before: list[State], suffix: str) -> State:
        """One step of a layer and direction, from the projected input and the state before it."""
        weight, bias = getattr(self, f"weight_hh{suffix}"), getattr(self, f"bias_hh{suffix}", None)
        return self._step(x, before[0], lambda h: linear(h, weight, bias, transpose=True))

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
        steps = [] if isinstance(x, Node) else self._steps_of(x)
        graph = x.graph if isinstance(x, Node) else graph or self._graph_of(steps)
        length = x.shape[0] if isinstance(x, Node) else len(steps)
        layers = self._suffixes
        if initial is not None:
            self._check_states(initial, self.num_layers * len(layers[0]))
        columns = self.hidden_size * len(layers[0])
        finals: list[State] = []
        if length == 0:
            finals = [self._zero(graph) for _ in range(self.num_layers * len(layers[0]))]
            return (graph.constant(0.0, 0, columns) if one_node else []), finals if initial is None else list(initial)
        layer_input = x if isinstance(x, Node) else concat(steps, axis=0)
        zero = None if initial is not None else self._zero(graph)
        for layer, suffixes in enumerate(layers):
            passes = []
            for direction, suffix in enumerate(suffixes):
                state: Any = zero if initial is None else initial[len(finals)]
                passes.append(self._run(layer_input, state, suffix, reverse=direction == 1))
                finals.append(passes[-1][-1])
            if layer < self.num_layers - 1 or one_node:
                # Output 0 of a step is what it hands on: h.
                outputs = [states._column(0, reverse=direction == 1) for direction, states in enumerate(passes)]
                layer_input = concat(outputs) if self.bidirectional else outputs[0]
            if self.dropout and self.training and layer < self.num_layers - 1:
                layer_input = dropout(layer_input, self.dropout)
        if one_node:
            return layer_input, finals
        forward = [self._output(state) for state in passes[0]]
        if not self.bidirectional:
            return forward, finals
        backward = [self._output(state) for state in passes[1]][::-1]
        return [concat(pair) for pair in zip(forward, backward, strict=True)], finals

    def _steps_of(self, x: Any) -> list[Node]:
        given = type(x).__name__
        if isinstance(x, (list, tuple)):
            strange = [type(step).__name__ for step in x if not isinstance(step, Node)]
            if not strange:
                return list(x)
            given = f"{given} that holds {strange[0]}"
        raise errors.NodeTypeError(
            f"{type(self).__name__}: {given} is given; a node (graph.input(array) makes one) or a list of nodes is required"
        )

    def _check_states(self, initial: Any, number: int) -> None:
        name, parts = type(self).__name__, self._parts
        given = f"{len(initial)} states" if isinstance(initial, (list, tuple)) else type(initial).__name__
        if given != f"{number} states":
            raise (errors.NodeValueError if given.endswith("states") else errors.NodeTypeError)(
                f"{name}: initial is {given}; a list of {number}, one for each layer and direction, is required"
            )
        for place, state in enumerate(initial):
            nodes = (state,) if isinstance(state, Node) else state
            right = isinstance(nodes, (list, tuple)) and all(isinstance(node, Node) for node in nodes)
            if not right or len(nodes) != parts or isinstance(state, Node) != (parts == 1):
                required = "a node" if parts == 1 else f"a tuple of {parts} nodes"
                raise errors.NodeTypeError(
                    f"{name}: initial state {place} is {type(state).__name__}"
                    f"{f' of {len(nodes)}' if right and nodes is state else ''}; {required} is required"
                )
            for node in nodes:
                if node.shape != (1, self.hidden_size):
                    raise errors.ShapeError(
                        f"{name}: initial state {place} has shape {node.shape}; (1, {self.hidden_size}) is required"
                    )

    @staticmethod
    def _graph_of(steps: list[Node]) -> Graph:
        if not steps:
            raise errors.NodeValueError("sequence: an empty list is given; pass graph= with it")
        return steps[0].graph

    def _run(self, x: Node, state: State, suffix: str, reverse: bool) -> Any:
        """The states after each step, in the order in which they are made."""
        # The input of all steps is projected at once; a step reads its row, which is a view.
        bias = getattr(self, f"bias_ih{suffix}", None)
        projected = linear(x, getattr(self, f"weight_ih{suffix}"), bias, transpose=True)
        return recur(self._cell, Structure.chain(x.shape[0], reverse), projected, suffix, initial=state)


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
    _parts = 2

    def _step(self, x: Node, state: LSTMState, hidden: Callable[[Node], Node]) -> LSTMState:
        return _lstm_step(x, LSTMState(*state), hidden)

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
