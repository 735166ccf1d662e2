"""Linear-chain conditional random fields (Lafferty, McCallum and Pereira 2001)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..node import Node
from .opdef import build, misuse, op

if TYPE_CHECKING:
    from ..parameter import Parameter

__all__ = ["crf_best_path", "crf_log_partition"]

_LOG_PARTITION, _BEST_PATH = op("crf_log_partition"), op("crf_best_path")


def _build(name: str, op_id: int, emissions: Node, *parameters: Any) -> Node:
    if not isinstance(emissions, Node):
        misuse(name, emissions)
    try:
        return build(emissions.graph, op_id, (emissions, *parameters))
    except AttributeError:
        misuse(name, emissions, *parameters)


def crf_log_partition(
    emissions: Node, transitions: Parameter | Node, start: Parameter | Node, end: Parameter | Node
) -> Node:
    """log Σ exp(score) over all tag sequences, by the forward algorithm.

    The score of tags y is start[y₁] + Σ emissions[t, yₜ] + Σ transitions[yₜ₋₁, yₜ] + end[y_T].

    Args:
        emissions: ``(T, tags)``, T at least 0, each example with its own.
        transitions: ``(tags, tags)``, from row to column.
        start: ``(1, tags)``.
        end: ``(1, tags)``.

    Returns:
        ``(1, 1)``; 0 where T is 0.
    """
    return _build("crf_log_partition", _LOG_PARTITION, emissions, transitions, start, end)


def crf_best_path(
    emissions: Node, transitions: Parameter | Node, start: Parameter | Node, end: Parameter | Node
) -> Node:
    """The tag sequence with the best score (Viterbi 1967), ``(T, 1)``; arguments as in :func:`crf_log_partition`."""
    return _build("crf_best_path", _BEST_PATH, emissions, transitions, start, end)
