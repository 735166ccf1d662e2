"""Node: one operation applied to other nodes of one example."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from . import _nodes, errors
from ._core import check, ffi, lib, pointer
from .interchange import dlpack_device

if TYPE_CHECKING:
    from ._nodes import Node as _CoreNode
    from .graph import Graph
else:
    _CoreNode = object

__all__ = ["Node", "methods_of", "settle"]

_add1, _add2, _add1_x, _add_slice = lib.ln_add1, lib.ln_add2, lib.ln_add1_x, lib.ln_add_slice
_op = lib.ln_op_id
_ARITHMETIC = {name: _op(name.encode()) for name in ("add", "sub", "mul", "div")}
_ADD_SCALAR, _MUL_SCALAR, _RSUB_SCALAR = _op(b"add_scalar"), _op(b"mul_scalar"), _op(b"rsub_scalar")
_RDIV_SCALAR, _POW_SCALAR, _RPOW_SCALAR = _op(b"rdiv_scalar"), _op(b"pow_scalar"), _op(b"rpow_scalar")
_NEG, _POW, _TRANSPOSE = _op(b"neg"), _op(b"pow"), _op(b"transpose")

_Class = TypeVar("_Class", bound=type)


def methods_of(core_type: Any) -> Callable[[_Class], _Class]:
    """Gives the methods of a class to a type that csrc/python/ makes, which then stands in for the class."""

    def add(methods: _Class) -> _Class:
        for name, value in vars(methods).items():
            if name not in ("__dict__", "__weakref__", "__orig_bases__", "__parameters__"):
                setattr(core_type, name, value)
        return core_type

    return add


@methods_of(_nodes.Node)
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
        return _nodes.shape(self)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return _nodes.shape(self)[0]

    @property
    def cols(self) -> int:
        """Number of columns."""
        return _nodes.shape(self)[1]

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

    def cupy(self) -> Any:
        """The value as a CuPy array, a copy on the GPU that the graph is on; computes what is needed for it first.

        Raises:
            DeviceError: The graph is on the CPU.
        """
        runtime = self.graph.device.runtime
        if runtime is None:
            raise errors.DeviceError("cupy: the graph is on the CPU; node.value is its array there")
        out = runtime.empty(self.shape, self.graph.dtype)
        self.graph._compute(self)
        address = ffi.cast("void *", out.__cuda_array_interface__["data"][0])
        self.graph._check(lib.ln_node_copy_value(self.graph._core, self._handle, address))
        return out

    def __dlpack__(self, **options: Any) -> Any:
        """The value for other libraries: ``torch.from_dlpack(node)``; a copy, on the graph's device."""
        return (self.value if self.graph.device.is_cpu else self.cupy()).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where ``__dlpack__`` gives it: kind and number of the device."""
        return dlpack_device(self.graph.device)

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient of the last ``backward``, a copy; None where the loss does not depend on the node.

        Raises:
            GraphError: The node is no input, and ``backward`` was called without ``retain_grad=True``.
        """
        out = np.empty(self.shape, self.graph.dtype)
        status = check(lib.ln_node_gradient(self.graph._core, self._handle, pointer(out)))
        return out if status else None

    def backward(self, *, retain_grad: bool = False) -> None:
        """Gradients of this ``1 x 1`` node in all that it depends on, see :meth:`lazynet.Graph.backward`."""
        self.graph.backward(self, retain_grad=retain_grad)

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
        self._refuse("bool", "compare node.value or node.item() instead")

    def _compare(self, other: Any) -> Any:
        self._refuse("comparison", "compare node.value instead")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        if self.graph._tracing:
            raise errors.TraceError(
                f"{what}: what a cell does must not depend on values; nodes have none while it is traced"
            )
        raise errors.NodeTypeError(f"{what}: a node has no value while the graph is built; {instead}")

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __len__(self) -> int:
        return self.shape[0]

    # ---- arithmetic

    # + - * / are in csrc/python/nodes.cc; _arithmetic() below has what they leave to Python.

    def _binary(self, other: Any, op: int, name: str, swap: bool = False) -> Node:
        graph = self.graph
        right = graph._operand(other, name)
        first, second = (right, self._handle) if swap else (self._handle, right)
        return settle(graph, _add2(graph._core, op, first, second), other)

    def _scalar(self, op: int, number: float) -> Node:
        graph = self.graph
        return settle(graph, _add1_x(graph._core, op, self._handle, number))

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
        return settle(graph, _add1(graph._core, _NEG, self._handle))

    @property
    def T(self) -> Node:
        """The transposed matrix."""
        graph = self.graph
        return settle(graph, _add1(graph._core, _TRANSPOSE, self._handle))

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        """NumPy does not take a node for an array, whose gradient would be lost without a word."""
        raise errors.NodeTypeError("numpy: a node is given where an array is expected; its numbers are node.value")

    # ---- views

    # x[...] is in csrc/python/handle.cc; _subscript() below has what it leaves to Python.

    def __iter__(self) -> Any:
        return (self[row] for row in range(self.shape[0]))


def settle(graph: Graph, handle: int, *others: Any) -> Node:
    """The node of what a building call returned, or its error; ``others`` are operands, for the error's text."""
    if handle < 0:
        handle = graph._settle(handle, *others)
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
    return settle(graph, _add_slice(graph._core, x._handle, row, row_count, col, col_count))


def _range_of(index: Any, size: int, what: str, shape: tuple[int, int]) -> tuple[int, int]:
    """First element and count that an index or slice of one axis asks for."""
    if isinstance(index, slice):
        if index.step not in (None, 1):
            raise errors.NodeIndexError(f"slice: a {what} step of {index.step} is given; only 1 is possible")
        start, stop, _ = index.indices(size)
        return start, max(stop - start, 0)
    try:
        if isinstance(index, bool):
            raise AttributeError
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


_CORE_FUNCTIONS = ("ln_add2", "ln_add", "ln_add_part", "ln_add_row", "ln_add_cell", "ln_node_shape")
_nodes.bind(
    *(int(ffi.cast("intptr_t", ffi.addressof(lib, name))) for name in _CORE_FUNCTIONS),
    *_ARITHMETIC.values(),
    _arithmetic,
    _subscript,
)
