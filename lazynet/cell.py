"""Cells: a function of nodes, traced once and then placed in graphs as one node a call."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from . import _nodes, errors
from ._core import ffi, last_error, lib
from .graph import Graph
from .module import RecordedReads
from .node import Node, methods_of

__all__ = ["Cell", "cell", "set_cells"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
if TYPE_CHECKING:
    from ._nodes import Cell as _CoreCell
else:
    _CoreCell = object
_enabled = True


def set_cells(on: bool) -> bool:
    """Whether cells are placed as one node, or as the nodes that they are made of (also ``LAZYNET_CELLS=0``).

    Returns:
        What it was before.
    """
    global _enabled
    before, _enabled = _enabled, bool(on)
    _nodes.set_cells(_enabled)
    return before


set_cells(os.environ.get("LAZYNET_CELLS", "1") != "0")


def cells_enabled() -> bool:
    """Whether cells are placed as one node."""
    return _enabled


class _Traced:
    """One trace: the core's cell, and how its outputs make what the function returned."""

    def __init__(self, core: Any, rebuild: Callable[[list[Node]], Any], outputs: int) -> None:
        self.core = ffi.gc(core, lib.ln_cell_release)
        self.number = int(lib.ln_cell_number(core))
        self.rebuild, self.outputs = rebuild, outputs

    def text(self, optimized: bool) -> str:
        return str(ffi.string(lib.ln_cell_text(self.core, optimized)).decode())


def _flatten(value: Any, nodes: list[Node]) -> Hashable:
    """Appends the nodes inside nested tuples and lists; returns the structure, which is part of a trace's key."""
    if isinstance(value, Node):
        nodes.append(value)
        return Node
    if isinstance(value, (tuple, list)):
        return (type(value), *(_flatten(item, nodes) for item in value))
    if hasattr(value, "_handle"):
        raise errors.TraceError("cell: a parameter is an argument; read it inside the cell instead")
    return cast(Hashable, value)


def _rebuilder(value: Any, index: list[int]) -> Callable[[list[Node]], Any]:
    """A function that puts new nodes in the places of those in ``value``; ``index`` counts them."""
    if isinstance(value, Node):
        place = index[0]
        index[0] += 1
        return lambda nodes: nodes[place]
    if isinstance(value, (tuple, list)):
        parts = [_rebuilder(item, index) for item in value]
        if hasattr(value, "_fields"):
            kind: Any = type(value)
            return lambda nodes: kind(*(part(nodes) for part in parts))
        make = type(value)
        return lambda nodes: make(part(nodes) for part in parts)
    raise errors.TraceError(
        f"cell: the function returned {type(value).__name__}; nodes, or tuples and lists of nodes, are required"
    )


@methods_of(_nodes.Cell)
class Cell(_CoreCell):
    """What :func:`cell` makes of a function or method: called like it."""

    __name__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._traces: dict[tuple[Any, ...], _Traced | str] = {}
        self._version = -1
        self._recursions: dict[tuple[Any, ...], _Traced] = {}
        update_wrapper(self, function)

    def _bind(self, instance: Any) -> Cell:
        """The cell of one object, whose method this is."""
        function, reference = self.function, weakref.ref(instance)

        def method(*arguments: Any, **options: Any) -> Any:
            return function(reference(), *arguments, **options)

        bound = Cell(update_wrapper(method, function))
        bound.__name__ = self.__name__
        if hasattr(instance, "__dict__"):
            vars(instance).setdefault("_cells", {})[self.__name__] = bound
        return bound

    # Calls whose arguments are nodes or tuples of nodes, as in an earlier one, are in csrc/python/cell.cc.
    def _call(self, *arguments: Any, **options: Any) -> Any:
        return self._place(arguments, options)[0]

    def _place(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, _Traced | None]:
        """The result of a call, and the trace where it is one node."""
        if not _enabled:
            return self.function(*arguments, **options), None
        nodes: list[Node] = []
        structure = _flatten(arguments, nodes)
        if options:
            structure = (structure, tuple((name, _flatten(value, nodes)) for name, value in options.items()))
        if not nodes:
            raise errors.TraceError("cell: no argument is a node; at least one is required")
        graph = nodes[0].graph
        if graph._tracing:  # a cell inside a cell is part of it
            return self.function(*arguments, **options), None
        traced = self._trace_for(graph, nodes, structure, arguments, options)
        if isinstance(traced, str):
            return self.function(*arguments, **options), None
        handles = [node._handle for node in nodes]
        handle = lib.ln_add_cell(graph._core, traced.number, handles, len(handles))
        if handle < 0:
            handle = graph._settle(handle, *nodes)
        single = traced.outputs == 1
        result = traced.rebuild([Node(graph, handle if single else handle + 1 + k) for k in range(traced.outputs)])
        if not options:
            self._add_variant(arguments, graph.training, traced.number, result, traced.outputs)
        return result, traced

    def _trace_for(
        self, graph: Graph, nodes: Sequence[Node], structure: Hashable, arguments: Any, options: Any
    ) -> _Traced | str:
        """The trace for these arguments; text where the function cannot be one node, which says why."""
        if self._version != _nodes.current_structure():
            self._traces.clear()
            self._recursions.clear()
            self._version = _nodes.current_structure()
        cols = tuple(node.cols for node in nodes)
        key = (graph.dtype, graph.training, structure, cols)
        try:
            traced = self._traces.get(key)
        except TypeError as error:
            raise errors.TraceError(f"cell: an argument is neither a node nor hashable: {error}") from None
        if traced is None:
            traced = self._traces[key] = self._trace(graph, nodes, arguments, options)
        return traced

    def _trace(self, graph: Graph, nodes: Sequence[Node], arguments: Any, options: Any) -> _Traced | str:
        inner = Graph(dtype=graph.dtype, train=graph.training)
        inputs = [inner.input(np.zeros(node.shape), requires_grad=True) for node in nodes]
        inner._start_tracing()
        position = [0]
        inner_arguments = [_rebuilder_of_arguments(value, position, inputs) for value in arguments]
        inner_options = {name: _rebuilder_of_arguments(value, position, inputs) for name, value in options.items()}
        with RecordedReads():
            returned = self.function(*inner_arguments, **inner_options)
        outputs: list[Node] = []
        _flatten(returned, outputs)
        rebuild = _rebuilder(returned, [0])
        for output in outputs:
            if output.graph is not inner:
                return "it returns a node of another graph"
        core = lib.ln_cell_create(
            inner._core,
            [node._handle for node in inputs],
            len(inputs),
            [node._handle for node in outputs],
            len(outputs),
            getattr(self.function, "__qualname__", self.__name__).encode(),
        )
        if core == ffi.NULL:
            refusal = last_error()
            if isinstance(refusal, errors.NodeValueError):
                return str(refusal)
            raise refusal
        return _Traced(core, rebuild, len(outputs))

    def explain(self) -> str:
        """The programs of all traces, before and after optimisation, or why a trace runs as plain nodes."""
        lines = []
        for (dtype, training, _, cols), traced in self._traces.items():
            lines.append(f"{self.__name__}, inputs of {cols} cols, {dtype}, {'training' if training else 'inference'}")
            if isinstance(traced, str):
                lines.append(f"  runs as plain nodes: {traced}")
            else:
                lines += ["traced:", traced.text(False), "runs as:", traced.text(True)]
        return "\n".join(lines) or f"{self.__name__}: not called yet"


def _rebuilder_of_arguments(value: Any, position: list[int], nodes: Sequence[Node]) -> Any:
    """The argument with its nodes replaced, in order."""
    if isinstance(value, Node):
        position[0] += 1
        return nodes[position[0] - 1]
    if isinstance(value, (tuple, list)):
        items = [_rebuilder_of_arguments(item, position, nodes) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def cell(function: _Function) -> _Function:
    """Makes a function of nodes, or a method of a module, one node a call.

    The function is called once for each combination of input cols, element type and other arguments, on nodes of a graph
    of its own, and what it does there is made into fewer and larger steps. It is called again after an attribute of a
    module that it read was set to something else. It may call other cells, read parameters, and
    return nodes, or tuples and lists of them. A function whose operations mix rows, or that has ids or dropout in it, runs
    as plain nodes (``explain()`` says so).

    Example:
        >>> import lazynet as ln
        >>> class Gate(ln.Module):
        ...     def __init__(self):
        ...         self.linear = ln.nn.Linear(2, 2)
        ...     @ln.cell
        ...     def forward(self, x):
        ...         return x * ln.sigmoid(self.linear(x))
        >>> gate, graph = Gate(), ln.Graph()
        >>> gate(graph.input([[1.0, 2.0]])).shape
        (1, 2)
    """
    return cast(_Function, Cell(function))
