"""Cells: a function of nodes, traced once and then placed in graphs as one node a call."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from functools import partial, update_wrapper
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from . import _nodes, errors
from ._core import ffi, last_error, lib
from .graph import Graph
from .module import OWNED_TRACES as _OWNED
from .module import Contents, Module, RecordedReads, plain_key
from .node import Node, methods_of

__all__ = ["Cell", "cell", "set_cells"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
if TYPE_CHECKING:
    from ._nodes import Cell as _CoreCell
    from ._nodes import Traces as _CoreTraces
else:
    _CoreCell = _CoreTraces = object
_MOST_TRACES = 256
_OTHER_ROWS = (1, 2, 101)  # with which each trace is made again: the number of rows must make no difference
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

    def __init__(self, core: Any, structure: Hashable, rebuild: Callable[[list[Node]], Any], outputs: int) -> None:
        self.core = ffi.gc(core, lib.ln_cell_release)
        self.number = int(lib.ln_cell_number(core))
        self.structure, self.rebuild, self.outputs = structure, rebuild, outputs
        self.contents: Contents | None = None  # of lists and the like that it was traced with

    def holds(self) -> bool:
        """Whether the function would be traced to the same again."""
        return self.contents is None or self.contents()

    def is_as(self, other: _Traced) -> bool:
        return self.structure == other.structure and bool(lib.ln_cell_same(self.core, other.core))

    def text(self, optimized: bool) -> str:
        return str(ffi.string(lib.ln_cell_text(self.core, optimized)).decode())


def _flatten(value: Any, nodes: list[Node], name: str = "cell") -> Hashable:
    """Appends the nodes inside nested tuples and lists; returns the structure, which is part of a trace's key."""
    if isinstance(value, Node):
        nodes.append(value)
        return Node
    if isinstance(value, (tuple, list)):
        return (type(value), *(_flatten(item, nodes, name) for item in value))
    if hasattr(value, "_handle"):
        raise errors.TraceError(f"{name}: a parameter is an argument; read it inside the cell instead")
    return plain_key(value)


def _rebuilder(value: Any, index: list[int], name: str) -> Callable[[list[Node]], Any]:
    """A function that puts new nodes in the places of those in ``value``; ``index`` counts them."""
    if isinstance(value, Node):
        place = index[0]
        index[0] += 1
        return lambda nodes: nodes[place]
    if isinstance(value, (tuple, list)):
        parts = [_rebuilder(item, index, name) for item in value]
        if hasattr(value, "_fields"):
            kind: Any = type(value)
            return lambda nodes: kind(*(part(nodes) for part in parts))
        make = type(value)
        return lambda nodes: make(part(nodes) for part in parts)
    raise errors.TraceError(
        f"{name}: the function returned {type(value).__name__}; nodes, or tuples and lists of nodes, are required"
    )


@methods_of(_nodes.Traces)
class _Traces(_CoreTraces):
    """What calls of a cell have been traced as: of a function, or of the method of one object."""

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner
        self.by_key: dict[tuple[Any, ...], _Traced | str] = {}  # text: why such calls run as plain nodes
        self.recursions: dict[tuple[Any, ...], _Traced] = {}
        self.structure = -1

    def are_current(self) -> bool:
        return self.structure == _nodes.current_structure()

    def start_over(self) -> None:
        self.by_key.clear()
        self.recursions.clear()
        self.structure = _nodes.current_structure()


def _remember(known: dict[tuple[Any, ...], Any], key: tuple[Any, ...], traced: _Traced | str) -> None:
    """Adds a trace and lets go of the oldest beyond a number, so that options of any number of values may come."""
    known[key] = traced
    if len(known) > _MOST_TRACES:
        del known[next(iter(known))]


class _Owned(dict[Any, Any]):
    """The traces of an object's methods, by cell. Copies of the object begin without any."""

    def __init__(self, owner: Any = None) -> None:
        super().__init__()
        self.owner = owner

    def __reduce__(self) -> Any:
        return _Owned, ()


@methods_of(_nodes.Cell)
class Cell(_CoreCell):
    """What :func:`cell` makes of a function or method: called like it."""

    __name__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        if isinstance(function, FunctionType):
            update_wrapper(self, function)
        else:  # whose attributes are its own
            update_wrapper(self, function, updated=())
            self.__name__ = self.__qualname__ = _name_of(function)
        self._label = f"cell {self.__qualname__.rpartition('<locals>.')[2]}"

    @property
    def function(self) -> Callable[..., Any]:
        """The function or method that is traced."""
        return self._function if self.__self__ is None else MethodType(self._function, self.__self__)

    def _is_method_of(self, instance: Any) -> bool:
        if isinstance(instance, (Node, Module)):
            return not isinstance(instance, Node)
        return any(value is self for kind in type(instance).__mro__ for value in vars(kind).values())

    def _traces_of(self, instance: Any) -> _Traces:
        """Traces of one object's method, which the object itself holds, so that they go when it goes."""
        try:
            owner, held = weakref.ref(instance), vars(instance)
            cells = held.get(_OWNED)
            if cells is None or cells.owner is None or cells.owner() is not instance:
                cells = held[_OWNED] = _Owned(owner)
        except TypeError:  # there is no room in it
            unheld: Any = _nodes.Traces()
            return cast(_Traces, unheld)
        traces: _Traces = cells.setdefault(self, _nodes.Traces(owner))
        return traces

    def __repr__(self) -> str:
        return f"<{self._label}>" if self.__self__ is None else f"<{self._label} of {type(self.__self__).__name__}>"

    def __reduce__(self) -> Any:
        if self.__self__ is not None:
            return _bound, (self._origin, self.__self__)
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (cell, (self._function,))

    def __deepcopy__(self, memo: dict[int, Any]) -> Cell:
        if self.__self__ is not None:
            return _bound(self._origin, deepcopy(self.__self__, memo))
        return self if isinstance(self._function, FunctionType) else Cell(deepcopy(self._function, memo))

    # Calls whose arguments are nodes or tuples of nodes, as in an earlier one, are in csrc/python/cell.cc.
    def _call(self, *arguments: Any, **options: Any) -> Any:
        return self._place(arguments, options)[0]

    def _place(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, _Traced | None]:
        """The result of a call, and the trace where it is one node."""
        if self.__self__ is None and arguments and self._is_method_of(arguments[0]):
            return _bound(self, arguments[0])._place(arguments[1:], options)
        if not _enabled:
            return self.function(*arguments, **options), None
        nodes: list[Node] = []
        structure = _flatten(arguments, nodes, self._label)
        if options:
            named = tuple((name, _flatten(value, nodes, self._label)) for name, value in options.items())
            structure = (structure, named)
        if not nodes:
            raise errors.TraceError(f"{self._label}: no argument is a node; at least one is required")
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
            guard = traced.contents and traced.contents.identities
            self._traces.add_variant(arguments, graph.training, traced.number, result, traced.outputs, guard)
        return result, traced

    def _trace_for(
        self, graph: Graph, nodes: Sequence[Node], structure: Hashable, arguments: Any, options: Any
    ) -> _Traced | str:
        """The trace for these arguments; text where the function cannot be one node, which says why."""
        traces = self._traces
        if not traces.are_current():
            traces.start_over()
        cols, rows = tuple(node.cols for node in nodes), {node.rows for node in nodes}
        key = (graph.dtype, graph.training, structure, cols, len(rows))
        try:
            traced = traces.by_key.get(key)
        except TypeError as error:
            raise errors.TraceError(f"{self._label}: an argument is neither a node nor hashable: {error}") from None
        if traced is None or not (isinstance(traced, str) or traced.holds()):
            traced = "the inputs have unequal rows" if len(rows) > 1 else self._trace(graph, nodes, arguments, options)
            traces.by_key.pop(key, None)
            _remember(traces.by_key, key, traced)
        return traced

    def _trace(self, graph: Graph, nodes: Sequence[Node], arguments: Any, options: Any) -> _Traced | str:
        """Traces with the rows at hand, and with others, which must make no difference."""
        rows = nodes[0].rows
        with RecordedReads() as reads:
            traced = self._trace_with(rows, graph, nodes, arguments, options)
            if isinstance(traced, str):
                return traced
            for other in _OTHER_ROWS:
                try:
                    again = traced if other == rows else self._trace_with(other, graph, nodes, arguments, options)
                except Exception as error:  # whatever the function may raise
                    return f"it depends on the number of rows: with {other} it raises {type(error).__name__}: {error}"
                if isinstance(again, str) or not again.is_as(traced):
                    return f"it depends on the number of rows: with {other} it is another program than with {rows}"
            try:
                traced.contents = reads.contents()
            except OverflowError as error:
                return str(error)
        return traced

    def _trace_with(
        self, rows: int, graph: Graph, nodes: Sequence[Node], arguments: Any, options: Any
    ) -> _Traced | str:
        inner = Graph(dtype=graph.dtype, train=graph.training, device=graph.device)
        inputs = [inner.input(np.zeros((rows, node.cols)), requires_grad=True) for node in nodes]
        position = [0]
        inner_arguments = [_rebuilder_of_arguments(value, position, inputs) for value in arguments]
        inner_options = {name: _rebuilder_of_arguments(value, position, inputs) for name, value in options.items()}
        with inner._recording():
            returned = self.function(*inner_arguments, **inner_options)
        outputs: list[Node] = []
        structure = _flatten(returned, outputs, self._label)
        rebuild = _rebuilder(returned, [0], self._label)
        for output in outputs:
            if output.graph is not inner:
                return "it returns a node of another graph"
        core = lib.ln_cell_create(
            inner._core,
            [node._handle for node in inputs],
            len(inputs),
            [node._handle for node in outputs],
            len(outputs),
            self.__qualname__.encode(),
        )
        if core == ffi.NULL:
            refusal = last_error()
            if isinstance(refusal, errors.NodeValueError):
                return str(refusal)
            raise refusal
        return _Traced(core, structure, rebuild, len(outputs))

    def explain(self) -> str:
        """The programs of all traces, before and after optimisation, or why a trace runs as plain nodes."""
        lines = []
        for (dtype, training, _, cols, _), traced in self._traces.by_key.items():
            lines.append(f"{self.__name__}, inputs of {cols} cols, {dtype}, {'training' if training else 'inference'}")
            if isinstance(traced, str):
                lines.append(f"  runs as plain nodes: {traced}")
            else:
                lines += ["traced:", traced.text(False), "runs as:", traced.text(True)]
        return "\n".join(lines) or f"{self.__name__}: not called yet"


def _bound(origin: Cell, instance: Any) -> Cell:
    bound: Cell = origin.__get__(instance)
    return bound


def _name_of(function: Any) -> str:
    """What messages call a callable that is no function: its own name, or that of what it is made of."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


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

    The function is called on nodes of a graph of its own, a few times for each combination of input cols, element type
    and other arguments (the last 256 are kept), and what it does there is made into fewer and larger steps. It may call
    other cells, read parameters, and return nodes, or tuples and lists of them. What it does must not depend on the
    number of rows; such a function, one whose operations mix rows, and one that has ids or dropout in it, runs as plain
    nodes (``explain()`` says so), as do calls whose inputs have unequal rows.

    It is called again after an attribute of a module that it read was set to something else, or a list, dict or set in
    one was changed (reading one costs each call a comparison). Other changes are not noticed: of globals and closures,
    attributes of objects that are no modules, elements of arrays, and of an object that is given as an argument.

    Args:
        function: A function, a method where it is defined, a module, or another callable object.

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
    if isinstance(function, Cell):
        return cast(_Function, function)
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise errors.NodeTypeError(f"cell: a {kind} is given; a function is required (write @{kind} above @ln.cell)")
    if isinstance(function, type) or not callable(function):
        what = f"the class {function.__name__}" if isinstance(function, type) else repr(function)
        raise errors.NodeTypeError(f"cell: {what} is given; a function of nodes, or a module, is required")
    return cast(_Function, Cell(function))
