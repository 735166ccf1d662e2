"""What is decoded and what comes out."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..graph import Graph
from ..node import Node

__all__ = ["Hypothesis", "StepModel"]


class StepModel(Protocol):
    """A model of one example that predicts one token at a time.

    A state is any nest of nodes, tuples, NamedTuples, lists, dicts and other values. While decoding goes on its nodes may
    be replaced by others of the same value, so nodes that later steps read must be in the state and nowhere else. A
    node that several states share stays one node.
    """

    def start(self, graph: Graph, source: Any) -> Any:
        """The state before the first token."""

    def step(self, graph: Graph, state: Any, token: int) -> tuple[Node, Any]:
        """The logits ``(1, V)`` of what follows ``token``, and the state after it; leaves ``state`` as it is."""


class Hypothesis(NamedTuple):
    """One output of a source.

    Attributes:
        tokens: Without ``begin`` and ``end``.
        score: log p(tokens and ``end`` | source); without that of ``end`` where it is not finished.
        normalized: The score over the length penalty: what hypotheses are ranked by.
        finished: Whether it ends with ``end``; False where ``max_length`` cut it off.
    """

    tokens: list[int]
    score: float
    normalized: float
    finished: bool
