"""Finite-state policies, which are learned from a model's own graphs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from .. import errors
from .._core import check, ffi, last_error, lib
from ..graph import Graph

__all__ = ["FiniteState", "Learning", "learn"]

_FORMAT = "lazynet finite-state policy 1"


class Learning(NamedTuple):
    """How many batches all graphs together have under each policy, and what none can be below."""

    learned: int
    agenda: int
    lookahead: int
    lower_bound: int


class FiniteState:
    """A policy that looks at nothing but which signatures have nodes that can run, and which of them are safe to run.

    A signature is safe where all heads of its longest chains are ready, see :class:`ReadySignature`.

    It knows what to run next in the states that it met in :func:`learn`; in others, and where its choice cannot run,
    it does as ``"lookahead"`` or ``"agenda"``, whichever had fewer batches. Signatures are known by operator, sizes and
    names of parameters, so that it serves other graphs of the model, in training and inference, and other processes.

    The idea is that of Chen et al. 2023, ED-Batch: Efficient Automatic Batching of Dynamic Neural Networks via Learned
    Finite State Machines.

    Example:
        >>> import lazynet as ln
        >>> def build(graph):
        ...     x = graph.input([[1.0]])
        ...     return ln.sum([ln.exp(ln.tanh(x)), ln.exp(x)])
        >>> graph, policy = ln.Graph(), ln.batching.FiniteState()
        >>> loss = build(graph)
        >>> ln.batching.learn(policy, [graph])
        Learning(learned=3, agenda=3, lookahead=3, lower_bound=3)
        >>> graph = ln.Graph(policy=policy)
        >>> round(build(graph).item(), 4)
        4.86
    """

    def __init__(self) -> None:
        self._core = _policy_of("lookahead")

    def __len__(self) -> int:
        """How many states it knows."""
        return len(self._rules())

    def __repr__(self) -> str:
        return f"<FiniteState of {len(self)} states, else {self.fallback}>"

    @property
    def fallback(self) -> str:
        """What it does in a state that it does not know."""
        return self._lines()[0]

    def _lines(self) -> list[str]:
        text = lib.ln_policy_text(self._core)
        if text == ffi.NULL:
            raise last_error()
        return str(ffi.string(text).decode()).split("\n")

    def _rules(self) -> list[list[str]]:
        return [line.split("\t") for line in self._lines()[1:]]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON: the signatures, and for every state their numbers and the one to run."""
        rules = self._rules()
        signatures = sorted({run for run, *_ in rules} | {each[1:] for _, *ready in rules for each in ready})
        number = {signature: i for i, signature in enumerate(signatures)}
        states = []
        for run, *ready in rules:
            safe, other = ([number[each[1:]] for each in ready if each[0] == mark] for mark in "!?")
            states.append({"run": number[run], "safe": safe, "ready": other})
        content = {"format": _FORMAT, "fallback": self.fallback, "signatures": signatures, "states": states}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FiniteState:
        """Reads what :meth:`save` wrote.

        Raises:
            NodeValueError: The file holds something else; says what.
        """
        with open(path, encoding="utf-8") as file:
            try:
                content = json.load(file)
                if content["format"] != _FORMAT:
                    raise ValueError(f"its format is {content['format']!r}; {_FORMAT!r} is required")
                signatures = content["signatures"]
                lines = [content["fallback"]]
                for state in content["states"]:
                    safe, ready = (
                        [mark + signatures[i] for i in state[name]] for mark, name in (("!", "safe"), ("?", "ready"))
                    )
                    lines.append("\t".join([signatures[state["run"]], *safe, *ready]))
                core = _policy_of("\n".join(lines))
            except (ValueError, KeyError, TypeError, IndexError, errors.LazyNetError) as error:
                reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                raise errors.NodeValueError(f"policy: {os.fspath(path)} is no finite-state policy: {reason}") from error
        made = cls()
        made._core = core
        return made


def _policy_of(text: str) -> Any:
    core = lib.ln_policy_create(text.encode())
    if core == ffi.NULL:
        raise last_error()
    return ffi.gc(core, lib.ln_policy_release)


def learn(policy: FiniteState, graphs: Iterable[Graph], *, trials: int = 200, seed: int = 0) -> Learning:
    """Trains a policy on a model's graphs; nothing is computed, and the graphs stay as they are.

    Args:
        policy: Takes over what is learned; what it was before is forgotten. Graphs that have it already keep what they
            had: set ``graph.policy`` again.
        graphs: Graphs as they are built for training or inference, not run yet. One graph may come again and again with
            other minibatches, from a generator.
        trials: How often to go over all of them, at most; learning ends at the lower bound.
        seed: Of the exploration.

    Returns:
        The batches of all graphs together. The learned policy never has more on these graphs than ``"agenda"`` and
        ``"lookahead"``.

    Raises:
        GraphError: A graph has nothing to compute.
        NodeValueError: There are no graphs.
    """
    if not isinstance(policy, FiniteState):
        raise errors.NodeTypeError(f"learn: a policy of type {type(policy).__name__} is given; FiniteState is required")
    if isinstance(graphs, Graph):
        graphs = [graphs]
    if trials < 1:
        raise errors.NodeValueError(f"learn: {trials} trials are given; at least 1 is required")
    learner = ffi.gc(lib.ln_learner_create(), lib.ln_learner_release)
    for graph in graphs:
        if not isinstance(graph, Graph):
            raise errors.NodeTypeError(f"learn: {type(graph).__name__} is given among the graphs; a Graph is required")
        check(lib.ln_learner_add(learner, graph._core))
    result = ffi.new("ln_learning *")
    core = lib.ln_learner_run(learner, trials, seed & 0xFFFFFFFFFFFFFFFF, result)
    if core == ffi.NULL:
        raise last_error()
    policy._core = ffi.gc(core, lib.ln_policy_release)
    return Learning(result.learned, result.agenda, result.lookahead, result.lower_bound)
