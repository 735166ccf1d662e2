"""Plan: what forward runs, batch by batch, as text and as a drawing, and an independent check of it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import errors
from .._core import check, ffi, last_error, lib

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["Batch", "Buffer", "Operand", "Plan"]

_MODES = ("adjacent", "indexed", "gathered", "shared")


class Operand(NamedTuple):
    """One argument of all members of a batch.

    ``mode``: ``"adjacent"`` lies in order and is read in place, ``"indexed"`` is read through pointers, ``"gathered"`` is
    copied together first, ``"shared"`` is one node for all.
    """

    mode: str
    pieces: int
    bytes: int


class Batch(NamedTuple):
    """Nodes that one kernel runs, and where it writes.

    ``signature_number`` tells signatures of one text apart, as those of one cell in two modules.
    """

    op: str
    signature: str
    members: tuple[int, ...]
    operands: tuple[Operand, ...]
    buffer: int
    offset: int
    bytes: int
    signature_number: int


class Buffer(NamedTuple):
    """Memory of one signature (training) or one batch (inference); ``last_batch`` -1: kept until the graph is cleared."""

    bytes: int
    first_batch: int
    last_batch: int


class Plan:
    """The batches of a graph in order. Made by ``graph.plan()``; ``print(plan)`` shows it.

    Attributes:
        batches: In the order in which they run.
        buffers: That they write to.
        lower_bound: No schedule has fewer batches: for each signature its longest chain of nodes, summed.
        executed: Whether it has run.
        peak_bytes: The most memory for values and gathers at once, without gradients.
        gathered_bytes: What is copied together before kernels run, of ``read_bytes`` that they read.
    """

    def __init__(self, graph: Graph, handles: Sequence[int] = ()) -> None:
        self._graph = graph
        self._version = lib.ln_graph_version(graph._core)
        check(lib.ln_plan_pending(graph._core, list(handles), len(handles)))
        number = lib.ln_plan_count(graph._core) - 1
        self.batches: list[Batch] = []
        self.buffers: list[Buffer] = []
        self.lower_bound = self.peak_bytes = self.gathered_bytes = self.read_bytes = 0
        self.executed = self.from_cache = False
        if number >= 0:
            self._read(number)

    def _read(self, number: int) -> None:
        core = self._graph._core
        summary = ffi.new("ln_plan_summary *")
        check(lib.ln_plan_get(core, number, summary))
        self.lower_bound, self.executed = summary.lower_bound, bool(summary.executed)
        self.peak_bytes, self.gathered_bytes = summary.peak_bytes, summary.gathered_bytes
        self.read_bytes, self.from_cache = summary.read_bytes, bool(summary.from_cache)
        self.batches = [self._batch(number, index) for index in range(summary.batches)]
        buffer = ffi.new("ln_plan_buffer *")
        for index in range(check(lib.ln_plan_buffer_count(core, number))):
            check(lib.ln_plan_buffer_get(core, number, index, buffer))
            self.buffers.append(Buffer(buffer.bytes, buffer.first_batch, buffer.last_batch))
        self._arguments = {node: self._read_arguments(node) for batch in self.batches for node in batch.members}
        self._elements = {node: self._read_elements(node) for node in self._arguments}

    def _batch(self, number: int, index: int) -> Batch:
        core = self._graph._core
        batch, operand = ffi.new("ln_plan_batch *"), ffi.new("ln_plan_operand *")
        check(lib.ln_plan_batch_get(core, number, index, batch))
        members = ffi.new("int32_t[]", batch.members)
        check(lib.ln_plan_members(core, number, index, members))
        operands = []
        for position in range(batch.arguments):
            check(lib.ln_plan_operand_get(core, number, index, position, operand))
            operands.append(Operand(_MODES[operand.mode], operand.pieces, operand.bytes))
        signature = lib.ln_signature_text(core, batch.signature)
        if signature == ffi.NULL:
            raise last_error()
        return Batch(
            ffi.string(lib.ln_op_name(batch.op)).decode(),
            ffi.string(signature).decode(),
            tuple(members),
            tuple(operands),
            batch.buffer,
            batch.offset_bytes,
            batch.bytes,
            batch.signature,
        )

    def _handle(self, node: int) -> int:
        return int(self._version << 32 | node)

    def _read_arguments(self, node: int) -> tuple[int, ...]:
        core, handle = self._graph._core, self._handle(node)
        count = check(lib.ln_node_arguments(core, handle, ffi.NULL, 0))
        ids = ffi.new("int32_t[]", max(count, 1))
        check(lib.ln_node_arguments(core, handle, ids, count))
        return tuple(ids[i] for i in range(count))

    def _read_elements(self, node: int) -> int:
        shape = ffi.new("int64_t[2]")
        check(lib.ln_node_shape(self._graph._core, self._handle(node), shape))
        return int(shape[0] * shape[1])

    # ---- text and drawing

    def __str__(self) -> str:
        members = sum(len(batch.members) for batch in self.batches)
        lines = [
            f"{len(self.batches)} batches for {members} nodes (lower bound {self.lower_bound}), "
            f"{self.peak_bytes} bytes at once, {self.gathered_bytes} of {self.read_bytes} bytes read are gathered"
        ]
        rows = [("batch", "signature", "nodes", "operands", "buffer", "bytes", "members")]
        for number, batch in enumerate(self.batches):
            rows.append(
                (
                    str(number),
                    batch.signature,
                    str(len(batch.members)),
                    " ".join(operand.mode for operand in batch.operands),
                    f"{batch.buffer}+{batch.offset}",
                    str(batch.bytes),
                    _shortened(batch.members),
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Plan of {len(self.batches)} batches, lower bound {self.lower_bound}>"

    def to_html(self) -> str:
        """A page of its own: a row a batch, a bar as long as it has members, operands coloured by how they are read."""
        colours = {"adjacent": "#4a9", "indexed": "#c93", "gathered": "#c44", "shared": "#888"}
        largest = max((len(batch.members) for batch in self.batches), default=1)
        rows = []
        for number, batch in enumerate(self.batches):
            marks = "".join(
                f'<span style="background:{colours[o.mode]}" title="{o.mode}: {o.pieces} pieces, {o.bytes} bytes"></span>'
                for o in batch.operands
            )
            width = 100 * len(batch.members) / largest
            rows.append(
                f"<tr><td>{number}</td><td>{html.escape(batch.signature)}</td><td>{marks}</td>"
                f'<td class="bar"><div style="width:{width:.1f}%">{len(batch.members)}</div></td>'
                f"<td>{batch.buffer}+{batch.offset}</td></tr>"
            )
        legend = " ".join(f'<span style="background:{c}"></span> {mode}' for mode, c in colours.items())
        style = (
            "body{font:13px sans-serif}td,th{padding:2px 8px;text-align:left}.bar{width:30em}"
            ".bar div{background:#bcd;padding-left:3px}span{display:inline-block;width:12px;height:12px;margin-right:3px}"
        )
        return (
            f"<!doctype html><meta charset=utf-8><title>Plan</title><style>{style}</style>"
            f"<p>{html.escape(str(self).splitlines()[0])}</p><p>{legend}</p>"
            f"<table><tr><th>batch<th>signature<th>operands<th>nodes<th>buffer</tr>{''.join(rows)}</table>"
        )

    # ---- verification, written apart from the core

    def verify(self) -> None:
        """Checks the plan with nothing but what it says: order, signatures, memory, bound.

        Raises:
            GraphError: Names the first rule that is broken.
        """
        batch_of: dict[int, int] = {}
        for number, batch in enumerate(self.batches):
            for node in batch.members:
                if node in batch_of:
                    raise errors.GraphError(f"plan: node %{node} is in batches {batch_of[node]} and {number}")
                batch_of[node] = number
        self._verify_order(batch_of)
        self._verify_memory()
        bound = self._bound(batch_of)
        if bound != self.lower_bound or len(self.batches) < bound:
            raise errors.GraphError(
                f"plan: {len(self.batches)} batches and a bound of {self.lower_bound}; counted again it is {bound}"
            )

    def _producers(self, node: int, batch_of: dict[int, int]) -> list[int]:
        """Nodes of the plan that a node reads, through views."""
        found = []
        stack = list(self._arguments[node])
        while stack:
            argument = stack.pop()
            if argument in batch_of:
                found.append(argument)
            elif self._is_view(argument):
                stack += self._read_arguments(argument)
        return found

    def _is_view(self, node: int) -> bool:
        op = check(lib.ln_node_op(self._graph._core, self._handle(node)))
        return bool(ffi.string(lib.ln_op_kind(op)) == b"view")

    def _verify_order(self, batch_of: dict[int, int]) -> None:
        for node, number in batch_of.items():
            for producer in self._producers(node, batch_of):
                if batch_of[producer] >= number:
                    raise errors.GraphError(
                        f"plan: node %{node} of batch {number} reads %{producer} of batch {batch_of[producer]}"
                    )

    def _verify_memory(self) -> None:
        itemsize = self._graph.dtype.itemsize
        ends: dict[int, int] = {}
        for number, batch in enumerate(self.batches):
            size = sum(self._elements[node] for node in batch.members) * itemsize
            if size != batch.bytes:
                raise errors.GraphError(f"plan: batch {number} has {batch.bytes} bytes for members of {size}")
            if batch.offset < ends.get(batch.buffer, 0):
                raise errors.GraphError(f"plan: batch {number} overlaps an earlier one in buffer {batch.buffer}")
            ends[batch.buffer] = batch.offset + batch.bytes
            if ends[batch.buffer] > self.buffers[batch.buffer].bytes:
                raise errors.GraphError(f"plan: batch {number} reaches beyond buffer {batch.buffer}")
            if self.buffers[batch.buffer].first_batch > number:
                raise errors.GraphError(f"plan: buffer {batch.buffer} begins after batch {number} that writes it")
        self._verify_lifetimes()

    def _verify_lifetimes(self) -> None:
        batch_of = {node: number for number, batch in enumerate(self.batches) for node in batch.members}
        for node, number in batch_of.items():
            for producer in self._producers(node, batch_of):
                index = self.batches[batch_of[producer]].buffer
                last = self.buffers[index].last_batch
                if 0 <= last < number:
                    raise errors.GraphError(f"plan: buffer {index} is given back before batch {number} reads it")

    def _bound(self, batch_of: dict[int, int]) -> int:
        producers = {node: self._producers(node, batch_of) for node in batch_of}
        bound = 0
        members: dict[int, set[int]] = {}
        for batch in self.batches:
            members.setdefault(batch.signature_number, set()).update(batch.members)
        for own in members.values():
            chain: dict[int, int] = {}
            for node in sorted(batch_of):  # ids are in topological order
                chain[node] = max((chain[p] for p in producers[node]), default=0) + (node in own)
            bound += max(chain.values())
        return bound


def _shortened(members: Sequence[Any]) -> str:
    shown = " ".join(f"%{node}" for node in members[:6])
    return shown + (f" ... ({len(members) - 6} more)" if len(members) > 6 else "")
