"""Recursions: a cell over a whole tree, chain or lattice in one call, with no Python for each of its places."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from . import errors
from ._core import ffi, lib
from .cell import Cell, _flatten, _remember, _Traced, cells_enabled
from .graph import Graph
from .node import Node, settle
from .nodes.shape import concat

__all__ = ["States", "Structure", "recur"]

_add_recursion, _add_stack = lib.ln_add_recursion, lib.ln_add_stack


class Structure:
    """A directed acyclic structure, children before parents; worth keeping where one is used again and again.

    Args:
        children: For every place the numbers of its children, all less than its own; a leaf has none.
        rows: For every place the row of the input that it reads, or -1; by default place i reads row i.

    Example:
        >>> import lazynet as ln
        >>> len(ln.Structure([[], [], [0, 1]]))
        3
    """

    def __init__(self, children: Sequence[Sequence[int]], rows: Sequence[int] | None = None) -> None:
        try:
            count = len(children)
            self.begin = np.zeros(count + 1, np.int32)
            self.begin[1:] = np.cumsum([len(each) for each in children])
            self.children = _integers([child for each in children for child in each])
            self.rows = np.arange(count, dtype=np.int32) if rows is None else _integers(rows)
        except (TypeError, ValueError, OverflowError) as error:
            raise errors.NodeTypeError(
                f"structure: {error}; a sequence of sequences of numbers, and a number a place for rows, is required"
            ) from None
        if self.rows.shape != (count,):
            raise errors.ShapeError(
                f"structure: {self.rows.size} rows are given for {count} places; one each is required"
            )
        self.last_row = int(self.rows.max(initial=-1))
        owners = np.repeat(np.arange(count), np.diff(self.begin))
        wrong = np.flatnonzero((self.children < 0) | (self.children >= owners))
        if wrong.size:
            place, child = owners[wrong[0]], self.children[wrong[0]]
            raise errors.NodeIndexError(
                f"structure: place {place} has child {child}; one of the places before it is required"
            )
        wrong = np.flatnonzero(self.rows < -1)
        if wrong.size:
            raise errors.NodeIndexError(
                f"structure: place {wrong[0]} reads row {self.rows[wrong[0]]}; a row, or -1 for none, is required"
            )
        # What a place is to a cell: how many children, and whether it reads the input.
        self._kinds, self._kind_of = np.unique(np.diff(self.begin) * 2 + (self.rows >= 0), return_inverse=True)
        self._kind_list = self._kinds.tolist()
        # The first place that has nothing to read.
        self._bare = int(np.argmax(self._kind_of == 0)) if self._kind_list[:1] == [0] else -1
        self._cells: dict[tuple[int, ...], Any] = {}
        self._pointers = [ffi.cast("int32_t *", a.ctypes.data) for a in (self.begin, self.children, self.rows)]

    @classmethod
    @lru_cache(maxsize=1024)
    def chain(cls, length: int, reverse: bool = False) -> Structure:
        """A sequence: every place has the one before it as child; in reverse the first place reads the last row.

        Example:
            >>> import lazynet as ln
            >>> ln.Structure.chain(3, reverse=True).rows.tolist()
            [2, 1, 0]
        """
        rows = range(length)
        return cls([[place - 1] if place else [] for place in rows], rows[::-1] if reverse else rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _cells_of(self, numbers: tuple[int, ...]) -> Any:
        """For every place the core's cell, given those of the kinds of places."""
        cells = self._cells.get(numbers)
        if cells is None:
            if len(self._cells) >= 64:  # cells that were traced again leave their numbers behind
                self._cells.clear()
            cells = self._cells[numbers] = ffi.new("int32_t[]", np.array(numbers)[self._kind_of].tolist())
        return cells


def _integers(values: Sequence[int]) -> np.ndarray:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"numbers of type {array.dtype} are given")
    if array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise OverflowError("a number of more than 32 bits is given")
    return array.astype(np.int32)


class States(Sequence[Any]):
    """The states of all places, in their order: nodes, or the tuples of nodes that the cell returns."""

    def __init__(self, graph: Graph, first: Any, traced: _Traced) -> None:
        self.graph, self._first, self._traced = graph, first, traced

    def _column(self, output: int, reverse: bool = False) -> Node:
        """One output of all places, in their order or from the last to the first."""
        return settle(self.graph, _add_stack(self.graph._core, self._first, len(self._first), output, reverse))

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        first = self._first[_place_of(index, len(self))]
        return self._traced.rebuild([Node(self.graph, first + k) for k in range(self._traced.outputs)])

    def stacked(self) -> Any:
        """One state whose nodes hold a row, or the rows, of every place, one below another."""
        return self._traced.rebuild([self._column(k) for k in range(self._traced.outputs)])


class _PlainStates(list[Any]):
    """The states where the cell runs as plain nodes."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index if isinstance(index, slice) else _place_of(index, len(self)))

    def _column(self, output: int, reverse: bool = False) -> Node:
        """As of :class:`States`."""
        column = [state if isinstance(state, Node) else state[output] for state in self]
        return concat(column[::-1] if reverse else column, axis=0)

    def stacked(self) -> Any:
        """As :meth:`States.stacked`."""
        if not self:
            raise errors.NodeValueError("stacked: there are no places; a structure with at least one is required")
        first = self[0]
        if isinstance(first, Node):
            return self._column(0)
        columns = [self._column(k) for k in range(len(first))]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)


def _place_of(index: Any, count: int) -> int:
    try:
        return range(count)[index]
    except IndexError:
        raise errors.NodeIndexError(
            f"states: place {index} of {count} is asked for; {-count} to {count - 1} is required"
        ) from None


def recur(
    step: Any, structure: Structure | Sequence[Sequence[int]], x: Node, *options: Any, initial: Any = None
) -> States | _PlainStates:
    """Places a cell over a whole structure.

    Args:
        step: A cell, called as ``step(row, states, *options)``: the place's row of ``x``, or None, and a list of its
            children's states. It is traced once for each number of children.
        structure: A :class:`Structure`, or what one is made of.
        x: The input, ``(rows, cols)``.
        options: What else the step takes: numbers, strings and the like, no nodes.
        initial: A state that stands in for the children of every place that has none. Required where such a place reads
            no row.

    Returns:
        A sequence of states; its ``stacked()`` is one state with a row for every place.

    Example:
        >>> import lazynet as ln
        >>> class Sum(ln.Module):
        ...     @ln.cell
        ...     def forward(self, x, states):
        ...         return ln.tanh(ln.sum([x, *states]))
        >>> step, graph = Sum(), ln.Graph()
        >>> states = ln.recur(step.forward, [[], [], [0, 1]], graph.input([[0.1], [0.2], [0.3]]))
        >>> len(states), states[2].shape, states.stacked().shape
        (3, (1, 1), (3, 1))
    """
    if not isinstance(step, Cell):
        raise errors.NodeTypeError(f"recur: a step of type {type(step).__name__} is given; a cell is required")
    if not isinstance(x, Node):
        raise errors.NodeTypeError(f"recur: an input of type {type(x).__name__} is given; a node is required")
    if not isinstance(structure, Structure):
        structure = Structure(structure)
    graph, (rows, cols) = x.graph, x.shape
    if structure.last_row >= rows:
        raise errors.NodeIndexError(
            f"recur: place {int(np.argmax(structure.rows))} reads row {structure.last_row} of an input of shape {x.shape}; "
            f"at least {structure.last_row + 1} rows are required"
        )
    if structure._bare >= 0 and initial is None:
        raise errors.NodeValueError(
            f"recur: place {structure._bare} reads no row of the input and has no children; one of them, or an initial "
            "state, is required"
        )
    first_state: list[Node] = []
    if initial is not None:
        _flatten(initial, first_state)
    key = (graph.dtype, graph.training, cols, _key_of(options), *[node.cols for node in first_state])
    known = _known(step, structure, key)
    # Rows of the input are single, so that a state of more runs as plain nodes do.
    if known is None or graph._tracing or any(node.rows != 1 for node in first_state):
        return _recur_in_python(step, structure, x, options, initial, key)
    outputs = known[0].outputs
    if initial is not None and len(first_state) != outputs:
        raise errors.NodeValueError(
            f"recur: an initial state of {len(first_state)} nodes is given; {outputs}, as the step returns, are required"
        )
    first = ffi.new("int64_t[]", len(structure))
    begin, children, row_numbers = structure._pointers
    cells = structure._cells_of(tuple([traced.number for traced in known]))
    handles: Any = ffi.NULL if initial is None else [node._handle for node in first_state]
    graph._check(
        _add_recursion(
            graph._core, len(structure), cells, begin, children, x._handle, row_numbers, outputs, handles, first
        )
    )
    return States(graph, first, known[0])


def _known(step: Cell, structure: Structure, key: tuple[Any, ...]) -> list[_Traced] | None:
    """The traces of all kinds of places, or None where one is missing."""
    traces = step._traces
    if not traces.are_current() or not cells_enabled() or not len(structure):
        return None
    recursions = traces.recursions
    try:
        known = [recursions[kind, key] for kind in structure._kind_list]
    except KeyError:
        return None
    return known if all(traced.holds() for traced in known) else None


def _key_of(options: tuple[Any, ...]) -> Hashable:
    try:
        key = _flatten(options, [])
        hash(key)
    except (TypeError, errors.TraceError) as error:
        raise _no_options(options, error) from None
    return key


def _no_options(options: Any, error: object = "") -> errors.LazyNetError:
    return errors.NodeTypeError(
        f"recur: options {options!r} are given; values that are hashable and no nodes are required {error}"
    )


def _recur_in_python(
    step: Cell, structure: Structure, x: Node, options: tuple[Any, ...], initial: Any, key: tuple[Any, ...]
) -> _PlainStates:
    """Place by place; traces what has not been traced, so that the next time nothing of this is needed."""
    if any(isinstance(option, (Node, list, dict)) for option in options):
        raise _no_options(options)
    states = _PlainStates()
    begin, children, rows = structure.begin.tolist(), structure.children.tolist(), structure.rows.tolist()
    for place in range(len(structure)):
        below = [states[child] for child in children[begin[place] : begin[place + 1]]]
        row = x[rows[place]] if rows[place] >= 0 else None
        place_key = (len(below) * 2 + (row is not None), key)
        state, traced = step._place((row, below or ([] if initial is None else [initial]), *options), {})
        if traced is not None:
            _remember(step._traces.recursions, place_key, traced)
        states.append(state)
    return states
