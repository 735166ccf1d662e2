"""Policies in Python: which signature runs next. The core's own are tested against the ones written here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core import ffi, lib

__all__ = ["Agenda", "Lookahead", "Policy", "ReadySignature"]


class ReadySignature(NamedTuple):
    """A signature with nodes that can run now.

    ``heads`` of the nodes that remain begin one of its longest chains; with all of them ready a batch makes the lower
    bound of what is left smaller by one, so that nothing is lost.
    """

    signature: int
    op: str
    ready: int
    remaining: int
    heads: int
    ready_heads: int
    average_depth: float

    @classmethod
    def from_core(cls, struct: Any) -> ReadySignature:
        """From the core's record."""
        op = ffi.string(lib.ln_op_name(struct.op)).decode()
        return cls(
            struct.signature,
            op,
            struct.ready,
            struct.remaining,
            struct.heads,
            struct.ready_heads,
            struct.average_depth,
        )


class Policy:
    """Chooses, again and again, the signature whose ready nodes become the next batch.

    Pass an instance as ``Graph(policy=...)``. Whatever it chooses, the order is a valid one; a good choice makes fewer
    batches.

    Example:
        >>> import lazynet as ln
        >>> class Largest(ln.batching.Policy):
        ...     def choose(self, ready):
        ...         return max(ready, key=lambda r: r.ready)
        >>> graph = ln.Graph(policy=Largest())
        >>> ln.tanh(graph.input([[0.0]])).value.tolist()
        [[0.0]]
    """

    def choose(self, ready: Sequence[ReadySignature]) -> ReadySignature:
        """One of ``ready``, which is not empty and ordered by signature."""
        raise NotImplementedError


class Agenda(Policy):
    """The smallest average depth first (Neubig et al. 2017, On-the-fly Operation Batching in Dynamic Computation Graphs)."""

    def choose(self, ready: Sequence[ReadySignature]) -> ReadySignature:
        """The signature of smallest average depth; of equals the first."""
        return min(ready, key=lambda r: (r.average_depth, r.signature))


class Lookahead(Agenda):
    """As :class:`Agenda`, but first a signature that is safe: all heads of its longest chains are ready.

    Then no schedule of what is left is better: the sufficient condition of ED-Batch (Chen et al. 2023).
    """

    def choose(self, ready: Sequence[ReadySignature]) -> ReadySignature:
        """A safe signature of smallest average depth where there is one."""
        return super().choose([r for r in ready if r.ready_heads == r.heads] or ready)
