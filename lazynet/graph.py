"""Graph: owns the nodes of a minibatch, computes them in batches, differentiates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _nodes, anomaly, errors
from ._core import DTYPES, check, dtype_code, ffi, integer, last_error, lib, pointer
from .device import Device
from .device import device as find_device
from .interchange import device_array
from .node import Node, settle

if TYPE_CHECKING:
    from .batching import FiniteState, Plan, Policy
    from .parameter import Parameter

__all__ = ["Graph"]

_PACKAGE = str(Path(__file__).resolve().parent)
_LEAKED = (
    "{}: a node is used that was made while a cell was traced and kept by the function; it stands for no call of the cell "
    "and has no value; return it from the cell instead"
)
_CONSTANT = lib.ln_op_id(b"constant")
_UINT64 = 0xFFFFFFFFFFFFFFFF


class Graph(_nodes.CoreGraph):
    """Owns the nodes of a minibatch, their schedule and their memory.

    Args:
        dtype: Element type of all values, float32 or float64.
        train: False keeps nothing for ``backward`` and releases each value as soon as its last reader has run.
        eager: True computes every node as it is built, one at a time, for debugging.
        seed: Of dropout.
        policy: How nodes are grouped: ``"lookahead"``, ``"agenda"``, ``"depth"``, ``"none"``, a
            :class:`lazynet.batching.FiniteState` that was learned, or a :class:`lazynet.batching.Policy` of one's own.
        memory_limit: Bytes that the pool may hold; 0 for no limit.
        chunk_bytes: The smallest piece of memory that the pool asks for; 0 for the default.
        device: Where values lie and kernels run: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, see :func:`lazynet.device`; by
            default that of :func:`lazynet.set_default_device`. Its parameters must be there too.

    Use ``with graph:`` for every minibatch: it starts over and keeps the memory.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> with graph:
        ...     x = graph.input([[1.0, 2.0]], requires_grad=True)
        ...     loss = ln.sum(x * x)
        ...     graph.backward(loss)
        ...     loss.item(), x.grad.tolist()
        (5.0, [[2.0, 4.0]])
    """

    __slots__ = ("__weakref__", "_chooser", "_core", "_policy", "_recorded", "_sites", "device", "dtype")

    def __init__(
        self,
        *,
        dtype: Any = "float32",
        train: bool = True,
        eager: bool = False,
        seed: int = 0,
        policy: str | FiniteState | Policy = "lookahead",
        memory_limit: int = 0,
        chunk_bytes: int = 0,
        device: str | Device | None = None,
    ) -> None:
        self.device = find_device(device)
        code = dtype_code(dtype)
        seed = integer("graph", "seed", seed)
        memory_limit = integer("graph", "memory_limit", memory_limit)
        chunk_bytes = integer("graph", "chunk_bytes", chunk_bytes)
        if memory_limit < 0 or chunk_bytes < 0:
            raise errors.NodeValueError("graph: memory_limit and chunk_bytes must not be negative")
        options = ffi.new(
            "ln_graph_options *",
            {
                "dtype": code,
                "train": bool(train),
                "eager": bool(eager),
                "seed": seed & _UINT64,
                "memory_limit": memory_limit,
                "chunk_bytes": chunk_bytes,
                "device": self.device._core,
            },
        )
        core = lib.ln_graph_create(options)
        if core == ffi.NULL:
            raise last_error()
        self._core = ffi.gc(core, lib.ln_graph_release)
        self._address = int(ffi.cast("intptr_t", core))
        self._chooser: Policy | None = None  # a policy in Python, asked for every batch
        self._sites: dict[int, tuple[str, int]] = {}
        self._recorded = False  # what a cell does was recorded in it
        self.dtype = DTYPES[code]
        self.training = bool(train)
        self.policy = policy
        anomaly.register(self)

    # ---- life

    def clear(self) -> None:
        """Forgets all nodes, which become stale, and keeps the memory for the next ones."""
        self._sites.clear()
        check(lib.ln_graph_clear(self._core))

    def __enter__(self) -> Graph:
        self.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def __len__(self) -> int:
        return int(lib.ln_graph_node_count(self._core))

    def __bool__(self) -> bool:
        return True

    @property
    def policy(self) -> str | FiniteState | Policy:
        """How nodes are grouped into batches; may be set at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: str | FiniteState | Policy) -> None:
        from .batching import FiniteState

        chooser = None
        if isinstance(policy, str):
            check(lib.ln_graph_set_policy(self._core, policy.encode()))
        elif isinstance(policy, FiniteState):
            check(lib.ln_graph_set_learned_policy(self._core, policy._core))
        elif hasattr(policy, "choose"):
            chooser = policy
        else:
            raise errors.NodeTypeError(
                f"policy: {policy!r} is given; a name, a FiniteState or an object with choose() is required"
            )
        self._policy, self._chooser = policy, chooser

    def set_seed(self, seed: int) -> None:
        """Sets the seed of dropout and starts its sequence over."""
        check(lib.ln_graph_set_seed(self._core, seed & _UINT64))

    @property
    def random_state(self) -> int:
        """The seed with which ``set_seed`` makes dropout go on from here, in this graph or another.

        Example:
            >>> import lazynet as ln
            >>> graph, other = ln.Graph(seed=1), ln.Graph()
            >>> _ = ln.dropout(graph.constant(1.0, 1, 9), 0.5)
            >>> other.set_seed(graph.random_state)
            >>> first, second = (ln.dropout(each.constant(1.0, 1, 9), 0.5).value for each in (graph, other))
            >>> (first == second).all().item()
            True
        """
        return int(lib.ln_graph_random_state(self._core))

    def set_memory_limit(self, limit: int) -> None:
        """Sets how many bytes the pool may hold; 0 for no limit."""
        check(lib.ln_graph_set_memory_limit(self._core, integer("set_memory_limit", "limit", limit)))

    def trim(self) -> None:
        """Gives memory that is not in use back to the system."""
        check(lib.ln_graph_trim(self._core))

    # ---- sources

    def input(self, array: Any, requires_grad: bool = False) -> Node:
        """A node that holds a copy of ``array``: a number, a vector (one row) or a matrix.

        Args:
            array: Anything that NumPy turns into at most two dimensions. In a graph on a GPU also an array of CuPy,
                PyTorch and the like on that GPU, of the graph's element type: it is copied there.
            requires_grad: Whether ``backward`` computes its gradient.
        """
        there = device_array(array, self.dtype, self.device, "input")
        if there is not None:
            rows, cols = self._rows_cols(there.shape)
            return settle(self, lib.ln_add_device_input(self._core, rows, cols, there.address, requires_grad))
        try:
            data = np.asarray(array)
            if data.dtype.kind not in "fiub":
                raise TypeError(f"its elements are {data.dtype}")
            data = np.ascontiguousarray(data, self.dtype)
        except (TypeError, ValueError) as error:
            raise errors.NodeTypeError(
                f"input: {type(array).__name__} is given; real numbers that make a matrix are required ({error})"
            ) from error
        rows, cols = self._rows_cols(data.shape)
        return settle(self, lib.ln_add_input(self._core, rows, cols, pointer(data), requires_grad))

    @staticmethod
    def _rows_cols(shape: tuple[int, ...]) -> tuple[int, int]:
        if len(shape) > 2:
            raise errors.ShapeError(f"input: shape {shape} is given; at most two dimensions are required")
        return (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0] if shape else 1)

    def constant(self, value: float, rows: int = 1, cols: int = 1) -> Node:
        """A ``rows x cols`` node full of ``value``."""
        try:
            shape = ffi.new("int64_t[2]", (rows, cols))
            number = ffi.new("double *", value)
        except (TypeError, OverflowError):
            raise errors.NodeTypeError(
                f"constant: value {value!r}, rows {rows!r} and cols {cols!r} are given; a number and two integers are "
                "required"
            ) from None
        return settle(self, lib.ln_add(self._core, _CONSTANT, ffi.NULL, 0, number, 1, shape, 2))

    def parameter(self, parameter: Parameter) -> Node:
        """The node of a parameter in this graph: its value is the parameter's own memory, not a copy."""
        rows_cols = ffi.new("int64_t[2]")
        self._check(lib.ln_node_shape(self._core, parameter._handle, rows_cols))
        return settle(self, lib.ln_add_slice(self._core, parameter._handle, 0, rows_cols[0], 0, rows_cols[1]))

    # ---- running

    def forward(self, *nodes: Node) -> None:
        """Computes what ``nodes`` need and is not yet computed; without arguments everything."""
        self._require_running("forward")
        handles = [self._own(node, "forward") for node in nodes]
        if self._chooser is not None:
            self._run_policy(self._chooser, handles)
        else:
            self._check(lib.ln_graph_forward(self._core, handles, len(handles)))

    def backward(self, loss: Node, *, retain_grad: bool = False) -> None:
        """Gradients of ``loss``, a ``1 x 1`` node, in all that it depends on; computes it first where needed.

        Gradients of parameters are added to what they hold (the optimizer's ``step`` clears them); gradients of nodes
        are those of this call. Parameters must still be what they were in ``forward``.

        Args:
            loss: A ``1 x 1`` node.
            retain_grad: Keep the gradients of all nodes, for ``node.grad``; without it those of inputs alone, and the
                others share memory.
        """
        self._require_running("backward")
        handle = self._own(loss, "backward")
        self._compute(loss)
        self._check(lib.ln_graph_backward(self._core, handle, retain_grad))

    def _compute(self, node: Node) -> None:
        self._require_running("value")
        if self._chooser is not None and not node.computed:
            self._run_policy(self._chooser, [node._handle])

    def _run_policy(self, policy: Policy, handles: list[int]) -> None:
        from .batching.policies import ReadySignature

        self._check(lib.ln_schedule_begin(self._core, handles, len(handles)))
        capacity = 64
        while True:
            buffer = ffi.new("ln_ready_signature[]", capacity)
            count = self._check(lib.ln_schedule_ready(self._core, buffer, capacity))
            if count > capacity:
                capacity = count * 2
                continue
            if count == 0:
                break
            ready = [ReadySignature.from_core(buffer[i]) for i in range(count)]
            chosen = policy.choose(ready)
            if chosen not in ready:
                raise errors.NodeValueError(f"policy: choose() returned {chosen!r}; one of the ready ones is required")
            self._check(lib.ln_schedule_take(self._core, chosen.signature, chosen.ready))
        self._check(lib.ln_schedule_run(self._core))

    # ---- looking

    def plan(self, *nodes: Node) -> Plan:
        """What ``forward(*nodes)`` would run, without running it; where nothing is left to run, what ran last."""
        from .batching import Plan

        return Plan(self, [self._own(node, "plan") for node in nodes])

    def statistics(self) -> dict[str, Any]:
        """Counts and seconds since creation or ``reset_statistics()``, and the pool's state under ``"pool"``."""
        counts = ffi.new("ln_graph_statistics *")
        check(lib.ln_graph_get_statistics(self._core, counts))
        pool = ffi.new("ln_pool_statistics *")
        check(lib.ln_graph_get_pool_statistics(self._core, pool))
        result: dict[str, Any] = _as_dict(counts)
        result["pool"] = _as_dict(pool)
        return result

    def reset_statistics(self) -> None:
        """Starts the counts of ``statistics()`` and ``profile()`` and the pool's peak over."""
        check(lib.ln_graph_reset_statistics(self._core))

    def set_profiling(self, on: bool = True) -> None:
        """Times every kernel from now on; read it with ``profile()``."""
        check(lib.ln_graph_set_profiling(self._core, on))

    def profile(self) -> dict[str, dict[str, Any]]:
        """For every operation that ran: kernels, nodes and, while profiling is on, seconds."""
        out = ffi.new("ln_op_profile *")
        result = {}
        for op in range(lib.ln_op_count()):
            check(lib.ln_graph_get_profile(self._core, op, out))
            if out.forward_kernels or out.backward_kernels:
                result[ffi.string(lib.ln_op_name(op)).decode()] = _as_dict(out)
        return result

    # ---- for the operators and cells

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Within it a cell is traced: nodes stand for those of every call, so that they have no values, then or later."""
        self._tracing = True
        try:
            yield
        finally:
            self._recorded = True

    def _require_running(self, what: str) -> None:
        if self._recorded:
            raise errors.TraceError(_LEAKED.format(what))
        if self._tracing:
            raise errors.TraceError(
                f"{what}: a cell reads the value of a node while it is traced; what a cell does must not depend on values"
            )

    def _own(self, node: Any, name: str) -> int:
        """The handle of a node of this graph."""
        if not isinstance(node, Node):
            raise errors.NodeTypeError(f"{name}: {type(node).__name__} is given; a node is required")
        if node.graph is not self:
            raise errors.GraphError(f"{name}: the node belongs to another graph; a node of this graph is required")
        return node._handle

    def _operand(self, value: Any, name: str) -> int:
        """The handle of anything that may stand beside a node: a node, a parameter, a number, an array."""
        handle = getattr(value, "_handle", None)
        if handle is not None:
            return int(handle)
        return self.input(self._operand_array(value, name))._handle

    @staticmethod
    def _operand_array(value: Any, name: str) -> Any:
        if value is None or isinstance(value, (str, bytes, dict)):
            raise errors.NodeTypeError(
                f"{name}: {type(value).__name__} is given; a node, a parameter, a number or an array is required"
            )
        return value

    def _settle(self, handle: int, *others: Any) -> int:
        """What a negative return of a building call means: an error to raise, or a node to trace."""
        if handle == -1:
            error = last_error()
            if isinstance(error, errors.StaleNodeError):
                for other in others:
                    several = other if isinstance(other, (list, tuple)) else (other,)
                    for each in several:
                        if getattr(each, "graph", self) is not self:
                            raise self._meets(each.graph)
            raise self._located(error)
        handle = -1 - handle
        site = _call_site()
        self._sites[handle & 0xFFFFFFFF] = site
        return handle

    def _meets(self, other: Graph) -> errors.LazyNetError:
        """The error for an operation on nodes of this graph and another."""
        if self._recorded or other._recorded:
            return errors.TraceError(_LEAKED.format("cell"))
        if self._tracing or other._tracing:
            return errors.TraceError(
                "cell: the function uses a node from outside of it, by closure or from an attribute; give it as an argument"
            )
        return errors.GraphError("nodes of two graphs meet in one operation; all must belong to the same graph")

    def _check(self, status: int) -> int:
        if status < 0:
            raise self._located(last_error())
        return status

    def _located(self, error: errors.LazyNetError) -> errors.LazyNetError:
        """Adds where the node at fault was built, where that was recorded."""
        if isinstance(error, errors.NonFiniteError):
            site = self._sites.get(lib.ln_error_node())
            if site is not None:
                return type(error)(f"{error}; the node was built at {site[0]}:{site[1]}")
        return error


def _call_site() -> tuple[str, int]:
    """File and line of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(Path(frame.f_code.co_filename).resolve()).startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _as_dict(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name, _ in ffi.typeof(struct[0]).fields}
