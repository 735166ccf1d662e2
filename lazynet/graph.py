"""Graph and Node: models are recorded lazily, computed in batches, differentiated."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import _nodes, anomaly, errors
from ._core import DTYPES, check, dtype_code, ffi, last_error, lib, pointer

if TYPE_CHECKING:
    from ._nodes import Node as _CoreNode
    from .batching import Plan, Policy
    from .parameter import Parameter
else:
    _CoreNode = object

__all__ = ["Graph", "Node"]

_PACKAGE = str(Path(__file__).resolve().parent)

_add1, _add2, _add1_x, _add1_xx = lib.ln_add1, lib.ln_add2, lib.ln_add1_x, lib.ln_add1_xx
_add_slice = lib.ln_add_slice
_op = lib.ln_op_id
_POW = _op(b"pow")
_ARITHMETIC = {name: _op(name.encode()) for name in ("add", "sub", "mul", "div")}
_ADD_SCALAR, _MUL_SCALAR, _RSUB_SCALAR = _op(b"add_scalar"), _op(b"mul_scalar"), _op(b"rsub_scalar")
_RDIV_SCALAR, _POW_SCALAR, _RPOW_SCALAR = _op(b"rdiv_scalar"), _op(b"pow_scalar"), _op(b"rpow_scalar")
_NEG, _MATMUL, _LINEAR, _TRANSPOSE = _op(b"neg"), _op(b"matmul"), _op(b"linear"), _op(b"transpose")
_CONSTANT = _op(b"constant")


_Class = TypeVar("_Class", bound=type)


def _add_to_node(methods: _Class) -> _Class:
    """Gives the methods of a class to the type that csrc/python/handle.cc makes, which stands in for the class."""
    for name, value in vars(methods).items():
        if name not in ("__dict__", "__weakref__"):
            setattr(_nodes.Node, name, value)
    return _nodes.Node  # type: ignore[return-value]


@_add_to_node
class Node(_CoreNode):
    """One operation applied to other nodes of one example: a light handle, not the value.

    Nodes are made by the functions of :mod:`lazynet` and by ``graph.input``; a node belongs to its graph and becomes
    stale when the graph is cleared. Its shape is ``(rows, cols)``; a vector is one row.

    Arithmetic (``+ - * / ** @``) works between nodes, parameters, numbers and arrays, with rows, columns and scalars
    repeated where sizes of 1 meet larger ones. ``x[i]``, ``x[i:j]``, ``x[:, a:b]`` are views and cost no copy.
    """

    # NumPy arrays leave operators with a node on the right to the node.
    __array_ufunc__ = None

    # ---- looking

    @property
    def id(self) -> int:
        """Number of the node in its graph, counted from 0."""
        return self._handle & 0xFFFFFFFF

    @property
    def shape(self) -> tuple[int, int]:
        """``(rows, cols)``."""
        out = ffi.new("int64_t[2]")
        check(lib.ln_node_shape(self.graph._core, self._handle, out))
        return out[0], out[1]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def cols(self) -> int:
        """Number of columns."""
        return self.shape[1]

    @property
    def op(self) -> str:
        """Name of the operation."""
        return str(ffi.string(lib.ln_op_name(check(lib.ln_node_op(self.graph._core, self._handle)))).decode())

    @property
    def computed(self) -> bool:
        """Whether the value is there already."""
        return bool(check(lib.ln_node_computed(self.graph._core, self._handle)))

    @property
    def requires_grad(self) -> bool:
        """Whether ``backward`` reaches it: a trainable parameter or a ``requires_grad`` input lies behind it."""
        return bool(check(lib.ln_node_requires_grad(self.graph._core, self._handle)))

    @property
    def value(self) -> np.ndarray:
        """The value, a copy of shape ``(rows, cols)``; computes what is needed for it first."""
        out = np.empty(self.shape, self.graph.dtype)
        self.graph._compute(self)
        self.graph._check(lib.ln_node_value(self.graph._core, self._handle, pointer(out)))
        return out

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient of the last ``backward``, a copy; None where the loss does not depend on the node."""
        out = np.empty(self.shape, self.graph.dtype)
        status = check(lib.ln_node_gradient(self.graph._core, self._handle, pointer(out)))
        return out if status else None

    def item(self) -> float:
        """The value of a ``1 x 1`` node as a Python number."""
        shape = self.shape
        if shape != (1, 1):
            raise errors.ShapeError(f"item: the node has shape {shape}; (1, 1) is required")
        return float(self.value[0, 0])

    def __float__(self) -> float:
        return self.item()

    def __repr__(self) -> str:
        try:
            return f"<Node %{self.id} {self.op} {self.shape}>"
        except errors.StaleNodeError:
            return f"<Node %{self.id}, stale>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other._handle == self._handle

    def __hash__(self) -> int:
        return hash(self._handle)

    def __reduce__(self) -> Any:
        raise errors.NodeTypeError("copy: a node cannot be copied or pickled; take node.value")

    def __bool__(self) -> bool:
        raise errors.NodeTypeError(
            "bool: a node has no value while the graph is built; compare node.value or node.item() instead"
        )

    def _compare(self, other: Any) -> Any:
        raise errors.NodeTypeError(
            "comparison: nodes have no value while the graph is built; compare node.value instead"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __len__(self) -> int:
        return self.shape[0]

    # ---- arithmetic

    # + - * / are in csrc/python/nodes.cc; _arithmetic() below has what they leave to Python.

    def _binary(self, other: Any, op: int, name: str, swap: bool = False) -> Node:
        graph = self.graph
        right = graph._operand(other, name)
        first, second = (right, self._handle) if swap else (self._handle, right)
        handle = _add2(graph._core, op, first, second)
        if handle < 0:
            handle = graph._settle(handle, other)
        return _node(graph, handle)

    def _scalar(self, op: int, number: float) -> Node:
        graph = self.graph
        handle = _add1_x(graph._core, op, self._handle, number)
        if handle < 0:
            handle = graph._settle(handle)
        return _node(graph, handle)

    def __pow__(self, other: Any) -> Node:
        if isinstance(other, (int, float)):
            return self._scalar(_POW_SCALAR, other)
        return self._binary(other, _POW, "pow")

    def __rpow__(self, other: Any) -> Node:
        if isinstance(other, (int, float)):
            return self._scalar(_RPOW_SCALAR, other)
        return self._binary(other, _POW, "pow", swap=True)

    def __matmul__(self, other: Any) -> Node:
        from .nodes.linear import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Node:
        from .nodes.linear import matmul

        return matmul(other, self)

    def __neg__(self) -> Node:
        graph = self.graph
        handle = _add1(graph._core, _NEG, self._handle)
        if handle < 0:
            handle = graph._settle(handle)
        return _node(graph, handle)

    @property
    def T(self) -> Node:
        """The transposed matrix."""
        graph = self.graph
        handle = _add1(graph._core, _TRANSPOSE, self._handle)
        if handle < 0:
            handle = graph._settle(handle)
        return _node(graph, handle)

    # ---- views

    # x[...] is in csrc/python/handle.cc; _subscript() below has what it leaves to Python.

    def __iter__(self) -> Any:
        return (self[row] for row in range(self.shape[0]))


def _node(graph: Graph, handle: int) -> Node:
    return Node(graph, handle)


def _arithmetic(name: str, a: Any, b: Any) -> Any:
    """An operator between a node and something else: a number, a parameter or an array."""
    swap = not isinstance(a, Node)
    node, other = (b, a) if swap else (a, b)
    if not isinstance(other, (int, float)):
        return node._binary(other, _ARITHMETIC[name], name, swap)
    if name == "add":
        return node._scalar(_ADD_SCALAR, other)
    if name == "mul":
        return node._scalar(_MUL_SCALAR, other)
    if name == "sub":
        return node._scalar(_RSUB_SCALAR, other) if swap else node._scalar(_ADD_SCALAR, -other)
    if swap:
        return node._scalar(_RDIV_SCALAR, other)
    if other == 0:
        raise errors.NodeValueError("div: a node is divided by the number 0; another divisor is required")
    return node._scalar(_MUL_SCALAR, 1 / other)


def _subscript(x: Node, index: Any) -> Node:
    """What is no single row: ranges of rows and columns."""
    rows, cols = index if isinstance(index, tuple) and len(index) == 2 else (index, slice(None))
    shape = x.shape
    row, row_count = _range_of(rows, shape[0], "row", shape)
    col, col_count = _range_of(cols, shape[1], "col", shape)
    graph = x.graph
    handle = _add_slice(graph._core, x._handle, row, row_count, col, col_count)
    if handle < 0:
        handle = graph._settle(handle)
    return _node(graph, handle)


def _range_of(index: Any, size: int, what: str, shape: tuple[int, int]) -> tuple[int, int]:
    """First element and count that an index or slice of one axis asks for."""
    if isinstance(index, slice):
        if index.step not in (None, 1):
            raise errors.NodeIndexError(f"slice: a {what} step of {index.step} is given; only 1 is possible")
        start, stop, _ = index.indices(size)
        return start, max(stop - start, 0)
    try:
        number = int(index.__index__())
    except AttributeError:
        raise errors.NodeTypeError(
            f"slice: {what} index {index!r} is given; an integer or a slice is required"
        ) from None
    if not -size <= number < size:
        raise errors.NodeIndexError(
            f"slice: {what} {number} of a node of shape {shape}; {-size} to {size - 1} is required"
        )
    return number % size, 1


class Graph(_nodes.CoreGraph):
    """Owns the nodes of a minibatch, their schedule and their memory.

    Args:
        dtype: Element type of all values, float32 or float64.
        train: False keeps nothing for ``backward`` and releases each value as soon as its last reader has run.
        eager: True computes every node as it is built, one at a time, for debugging.
        seed: Of dropout.
        policy: How nodes are grouped: ``"lookahead"``, ``"agenda"``, ``"depth"``, ``"none"``, or a
            :class:`lazynet.batching.Policy`.
        memory_limit: Bytes that the pool may hold; 0 for no limit.
        chunk_bytes: The smallest piece of memory that the pool asks for; 0 for the default.

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

    __slots__ = ("__weakref__", "_core", "_policy", "_policy_name", "_sites", "dtype", "training")

    def __init__(
        self,
        *,
        dtype: Any = "float32",
        train: bool = True,
        eager: bool = False,
        seed: int = 0,
        policy: str | Policy = "lookahead",
        memory_limit: int = 0,
        chunk_bytes: int = 0,
    ) -> None:
        code = dtype_code(dtype)
        if memory_limit < 0 or chunk_bytes < 0:
            raise errors.NodeValueError("graph: memory_limit and chunk_bytes must not be negative")
        options = ffi.new(
            "ln_graph_options *",
            {
                "dtype": code,
                "train": bool(train),
                "eager": bool(eager),
                "seed": seed & 0xFFFFFFFFFFFFFFFF,
                "memory_limit": memory_limit,
                "chunk_bytes": chunk_bytes,
            },
        )
        core = lib.ln_graph_create(options)
        if core == ffi.NULL:
            raise last_error()
        self._core = ffi.gc(core, lib.ln_graph_release)
        self._address = int(ffi.cast("intptr_t", core))
        self._policy: Policy | None = None
        self._sites: dict[int, tuple[str, int]] = {}
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
    def policy(self) -> str | Policy:
        """How nodes are grouped into batches; may be set at any time."""
        return self._policy if self._policy is not None else self._policy_name

    @policy.setter
    def policy(self, policy: str | Policy) -> None:
        if isinstance(policy, str):
            check(lib.ln_graph_set_policy(self._core, policy.encode()))
            self._policy, self._policy_name = None, policy
        elif hasattr(policy, "choose"):
            self._policy = policy
        else:
            raise errors.NodeTypeError(f"policy: {policy!r} is given; a name or an object with choose() is required")

    def set_seed(self, seed: int) -> None:
        """Sets the seed of dropout and starts its sequence over."""
        check(lib.ln_graph_set_seed(self._core, seed & 0xFFFFFFFFFFFFFFFF))

    def set_memory_limit(self, limit: int) -> None:
        """Sets how many bytes the pool may hold; 0 for no limit."""
        check(lib.ln_graph_set_memory_limit(self._core, limit))

    def trim(self) -> None:
        """Gives memory that is not in use back to the system."""
        check(lib.ln_graph_trim(self._core))

    # ---- sources

    def input(self, array: Any, requires_grad: bool = False) -> Node:
        """A node that holds a copy of ``array``: a number, a vector (one row) or a matrix.

        Args:
            array: Anything that NumPy turns into at most two dimensions.
            requires_grad: Whether ``backward`` computes its gradient.
        """
        try:
            data = np.ascontiguousarray(array, self.dtype)
        except (TypeError, ValueError) as error:
            raise errors.NodeTypeError(
                f"input: {type(array).__name__} is given; numbers that make a matrix are required"
            ) from error
        if data.ndim > 2:
            raise errors.ShapeError(f"input: shape {data.shape} is given; at most two dimensions are required")
        rows, cols = data.shape if data.ndim == 2 else (1, data.size)
        handle = lib.ln_add_input(self._core, rows, cols, pointer(data), requires_grad)
        if handle < 0:
            handle = self._settle(handle)
        return _node(self, handle)

    def constant(self, value: float, rows: int = 1, cols: int = 1) -> Node:
        """A ``rows x cols`` node full of ``value``."""
        shape = ffi.new("int64_t[2]", (rows, cols))
        number = ffi.new("double *", value)
        handle = lib.ln_add(self._core, _CONSTANT, ffi.NULL, 0, number, 1, shape, 2)
        if handle < 0:
            handle = self._settle(handle)
        return _node(self, handle)

    def parameter(self, parameter: Parameter) -> Node:
        """The node of a parameter in this graph: its value is the parameter's own memory, not a copy."""
        rows_cols = ffi.new("int64_t[2]")
        self._check(lib.ln_node_shape(self._core, parameter._handle, rows_cols))
        handle = lib.ln_add_slice(self._core, parameter._handle, 0, rows_cols[0], 0, rows_cols[1])
        if handle < 0:
            handle = self._settle(handle)
        return _node(self, handle)

    # ---- running

    def forward(self, *nodes: Node) -> None:
        """Computes what ``nodes`` need and is not yet computed; without arguments everything."""
        handles = [self._own(node, "forward") for node in nodes]
        if self._policy is not None:
            self._run_policy(self._policy, handles)
        else:
            self._check(lib.ln_graph_forward(self._core, handles, len(handles)))

    def backward(self, loss: Node) -> None:
        """Gradients of ``loss``, a ``1 x 1`` node, in all that it depends on; computes it first where needed.

        Gradients of parameters are added to what they hold (the optimizer's ``step`` clears them); gradients of nodes
        are those of this call.
        """
        handle = self._own(loss, "backward")
        self._compute(loss)
        self._check(lib.ln_graph_backward(self._core, handle))

    def _compute(self, node: Node) -> None:
        if self._policy is not None and not node.computed:
            self._run_policy(self._policy, [node._handle])

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

    # ---- for the operators

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
                    if any(getattr(each, "graph", self) is not self for each in several):
                        raise errors.GraphError(
                            "nodes of two graphs meet in one operation; all must belong to the same graph"
                        )
            raise self._located(error)
        handle = -1 - handle
        site = _call_site()
        self._sites[handle & 0xFFFFFFFF] = site
        return handle

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


_CORE_FUNCTIONS = ("ln_add2", "ln_add", "ln_add_part", "ln_add_row")
_nodes.bind(
    *(int(ffi.cast("intptr_t", ffi.addressof(lib, name))) for name in _CORE_FUNCTIONS),
    *_ARITHMETIC.values(),
    _arithmetic,
    _subscript,
)
