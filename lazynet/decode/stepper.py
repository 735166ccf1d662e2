"""Stepper: one step of many hypotheses, of all sources, in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from .. import errors
from ..graph import Graph
from ..module import Module
from ..node import Node
from ..nodes.search import top_k
from ..nodes.shape import concat
from ..nodes.softmax import logsumexp
from .arguments import at_least
from .model import StepModel
from .nest import collect, replace

__all__ = ["Stepper"]

#: Bytes that a graph holds before the live states are moved out of it and all else is forgotten.
BUDGET = 1 << 26
# What the core keeps for a node besides its value: its record, and its places in schedules and plans.
_BYTES_OF_A_NODE = 256


def _graph_of(model: StepModel) -> Graph:
    """A graph of the element type and on the device of the model's parameters, where it is a module."""
    for parameter in model.parameters() if isinstance(model, Module) else []:
        return Graph(train=False, dtype=parameter.dtype, device=parameter.device)
    return Graph(train=False)


class Stepper:
    """Steps hypotheses in a graph that holds what their states need and little more.

    Used with ``with``, at whose end the graph is cleared, also after an error.

    Args:
        name: Of the caller, for messages.
        model: Of the protocol.
        end: The token that ends an output, or None.
        graph: One with ``train=False``, or None for one of its own.
    """

    def __init__(self, name: str, model: StepModel, end: int | None, graph: Graph | None) -> None:
        if not all(callable(getattr(model, method, None)) for method in ("start", "step")):
            raise errors.NodeTypeError(
                f"{name}: a model of type {type(model).__name__} is given; one with start() and step() is required"
            )
        self.graph = _graph_of(model) if graph is None else graph
        if self.graph.training:
            raise errors.GraphError(f"{name}: a graph that trains is given; Graph(train=False) is required")
        self.name, self.model = name, model
        self.end = None if end is None else at_least(0, name, "end", end)
        self.vocabulary: int | None = None
        self.steps, self._budget = 0, BUDGET

    def __enter__(self) -> Stepper:
        self.graph.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.graph.clear()

    def start(self, sources: Sequence[Any]) -> list[Any]:
        """The states before the first token."""
        return [self.model.start(self.graph, source) for source in sources]

    def step(self, states: list[Any], tokens: list[int], count: int | None) -> tuple[np.ndarray, np.ndarray, list[Any]]:
        """What may follow each hypothesis.

        Args:
            states: One a hypothesis, at least one.
            tokens: The last token of each.
            count: How many of the most probable tokens, or all where there are fewer; None for all by id.

        Returns:
            Their log-probabilities (float64) and their ids, both ``(hypotheses, count)``, the most probable first and of
            equals the lowest id; and the states after ``tokens``. Only these may be stepped next.
        """
        if self._held() > self._budget:
            states = self._moved(states)
        pairs = [self.logits(state, token) for state, token in zip(states, tokens, strict=True)]
        states = [state for _, state in pairs]
        logits = concat([row for row, _ in pairs], axis=0)
        found = [logits] if count is None else top_k(logits, min(count, logits.cols))
        scores = concat([logsumexp(logits), *found])
        # What is not asked for is given back after its last reader, and the next step has yet to read the states.
        self.graph.forward(scores, *self._nodes(states))
        read = scores.value.astype(np.float64)
        self._require_finite(read[:, 0])
        self.steps += 1
        width = found[0].cols
        ids = np.broadcast_to(np.arange(width), (len(read), width)) if count is None else read[:, 1 + width :]
        return read[:, 1 : 1 + width] - read[:, :1], ids.astype(np.int64), states

    def logits(self, state: Any, token: int) -> tuple[Node, Any]:
        """What the model's step returns, checked."""
        returned = self.model.step(self.graph, state, token)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Node):
            raise errors.NodeTypeError(
                f"{self._place()} returns {type(returned).__name__}; a tuple of a node of logits and a state is required"
            )
        logits = returned[0]
        if logits.graph is not self.graph:
            raise errors.GraphError(
                f"{self._place()} returns logits of another graph; the graph it is given is required"
            )
        rows, cols = logits.shape
        if self.vocabulary is None and rows == 1:
            self._know(cols)
        if rows != 1 or cols != self.vocabulary:
            required = "V" if self.vocabulary is None else self.vocabulary
            raise errors.ShapeError(
                f"{self._place()} returns logits of shape {(rows, cols)}; (1, {required}) is required"
            )
        return returned

    def _know(self, vocabulary: int) -> None:
        """Takes the number of tokens from the first logits."""
        if vocabulary <= (self.end or 0):
            raise errors.NodeIndexError(
                f"{self.name}: end {self.end} is given for logits of {vocabulary} tokens; less than that is required"
            )
        self.vocabulary = vocabulary

    def _place(self) -> str:
        return f"{self.name}: step {self.steps} of {type(self.model).__name__}"

    def _require_finite(self, sums: np.ndarray) -> None:
        wrong = np.flatnonzero(~np.isfinite(sums))
        if wrong.size:
            raise errors.NodeValueError(
                f"{self._place()} returns logits whose logsumexp is {sums[wrong[0]]}, for hypothesis {wrong[0]} of "
                f"{len(sums)}; no NaN, no infinity but -inf, and at least one number are required"
            )

    def _nodes(self, states: list[Any]) -> list[Node]:
        """The nodes of all states, each once."""
        nodes = list(collect(states).values())
        for node in nodes:
            if node.graph is not self.graph:
                raise errors.GraphError(
                    f"{self._place()} returns a state with a node of another graph; the graph it is given is required"
                )
        return nodes

    def _held(self) -> int:
        return int(self.graph.statistics()["pool"]["bytes_in_use"]) + len(self.graph) * _BYTES_OF_A_NODE

    def _moved(self, states: list[Any]) -> list[Any]:
        """The states in the cleared graph."""
        values = [(node._handle, node.value) for node in self._nodes(states)]
        self.graph.clear()
        inputs = {handle: self.graph.input(value) for handle, value in values}
        # States that grow are moved when they have doubled, so that moving costs no more than making them.
        self._budget = max(BUDGET, 2 * self._held())
        return [replace(state, inputs) for state in states]
