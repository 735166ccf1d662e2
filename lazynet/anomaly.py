"""detect_anomaly(): traps NaN and infinity at the node where they are born."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ._core import check, lib

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["detect_anomaly"]

_state = threading.local()


def _graphs() -> weakref.WeakSet[Graph]:
    if not hasattr(_state, "graphs"):
        _state.graphs = weakref.WeakSet()
        _state.depth = 0
    graphs: weakref.WeakSet[Graph] = _state.graphs
    return graphs


def register(graph: Graph) -> None:
    """Remembers a graph of this thread, and switches the trap on in it where it is on."""
    _graphs().add(graph)
    if _state.depth > 0:
        _switch(graph, True)


def _switch(graph: Graph, on: bool) -> None:
    check(lib.ln_graph_set_anomaly(graph._core, on))
    check(lib.ln_graph_set_tracing(graph._core, on))


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Traps NaN and infinity in all graphs that this thread makes, before or within.

    While it is on, the first value or gradient that is not finite raises
    :class:`~lazynet.errors.NonFiniteError` naming the operation, the node, its arguments and the line of the program
    that built it (of nodes built while it is on). An infinity that came in through an input, as in a mask, is let
    through; a NaN never is. Costs a pass over every value and gradient.

    Example:
        >>> import lazynet as ln
        >>> with ln.detect_anomaly():
        ...     graph = ln.Graph()
        ...     ln.log(graph.input([[-1.0]])).value  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        lazynet.errors.NonFiniteError: log: the value of node %1 log (1, 1) is NaN or infinite at row 0, col 0; ...
    """
    graphs = _graphs()
    _state.depth += 1
    try:
        for graph in list(graphs):
            _switch(graph, True)
        yield
    finally:
        _state.depth -= 1
        if _state.depth == 0:
            for graph in list(graphs):
                _switch(graph, False)
