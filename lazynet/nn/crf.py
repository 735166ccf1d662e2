"""A linear-chain conditional random field on top of a tagger (Lafferty et al. 2001, Lample et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import errors, init
from ..module import Module
from ..node import Node
from ..nodes.crf import crf_best_path, crf_log_partition
from ..nodes.embedding import lookup
from ..nodes.loss import nll_loss
from ..nodes.opdef import ids_of
from ..nodes.reduce import sum
from ..parameter import Parameter

__all__ = ["CRF"]


class CRF(Module):
    """Scores of tag sequences: emissions, transitions between neighbours, and of the first and the last tag.

    Sentences of any lengths are one batch, the forward algorithm and the Viterbi algorithm one kernel each.

    Args:
        num_tags: Tags.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> crf, graph = ln.nn.CRF(2), ln.Graph()
        >>> emissions = graph.input([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]])
        >>> crf.loss(emissions, [0, 1, 0]).shape, crf.decode(emissions).value.astype(int).ravel().tolist()
        ((1, 1), [0, 1, 0])
    """

    def __init__(self, num_tags: int, *, dtype: Any = "float32") -> None:
        fill = init.uniform(-0.1, 0.1)
        self.start_transitions = Parameter((num_tags,), fill, dtype=dtype)
        self.end_transitions = Parameter((num_tags,), fill, dtype=dtype)
        self.transitions = Parameter((num_tags, num_tags), fill, dtype=dtype)

    def loss(self, emissions: Node, tags: Sequence[int]) -> Node:
        """-log p(tags), ``(1, 1)``.

        Args:
            emissions: ``(T, num_tags)``, T at least 0.
            tags: One a row.
        """
        ids = ids_of("CRF", tags)
        if len(ids) != emissions.rows:
            raise errors.ShapeError(
                f"CRF: {len(ids)} tags are given for emissions of shape {emissions.shape}; one a row is required"
            )
        count = self.transitions.shape[0]
        for row, tag in enumerate(ids):
            if not 0 <= tag < count:
                raise errors.NodeIndexError(
                    f"CRF: tag {tag} of row {row} is given; at least 0 and less than {count} is required"
                )
        total = crf_log_partition(emissions, self.transitions, self.start_transitions, self.end_transitions)
        if not ids:
            return total
        graph = emissions.graph
        # The picked numbers with their signs turned.
        picked = [
            nll_loss(emissions, ids, reduction="sum"),
            nll_loss(graph.parameter(self.start_transitions), ids[0], reduction="sum"),
            nll_loss(graph.parameter(self.end_transitions), ids[-1], reduction="sum"),
        ]
        if len(ids) > 1:
            picked.append(nll_loss(lookup(graph, self.transitions, ids[:-1]), ids[1:], reduction="sum"))
        return sum([total, *picked])

    def decode(self, emissions: Node) -> Node:
        """The best tags, ``(T, 1)``: numbers, through which no gradient flows."""
        return crf_best_path(emissions, self.transitions, self.start_transitions, self.end_transitions)
