"""Parameters: trainable matrices outside any graph, with memory of the core."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from . import _nodes, errors
from . import init as initializers
from ._core import DTYPES, check, dtype_code, ffi, last_error, lib, pointer
from .device import Device, Elements
from .device import device as find_device
from .interchange import DeviceArray, device_array, dlpack_device
from .node import Node

__all__ = ["Parameter", "SparseRows"]


class SparseRows(NamedTuple):
    """The gradient of a sparse table: touched row numbers, ascending, and their gradients."""

    indices: np.ndarray
    values: np.ndarray

    def to_dense(self, rows: int) -> np.ndarray:
        """The gradient as a full matrix of ``rows`` rows."""
        dense = np.zeros((rows, self.values.shape[1]), self.values.dtype)
        dense[self.indices] = self.values
        return dense


class Parameter(_nodes.CoreParameter):
    """A trainable matrix, or a vector, which counts as one row.

    More dimensions keep PyTorch's shapes; in graphs such a parameter has the first as rows and the others together as
    columns.

    Args:
        data: Initial values, or a shape: a tuple of integers.
        init: How a shape is filled, see :mod:`lazynet.init`; by default zeros.
        name: For error messages; a :class:`Module` names its parameters.
        dtype: float32 or float64; graphs that use it compute in the same type.
        sparse: Keep gradients of touched rows only; then only ``lookup`` may read it.
        trainable: False freezes it: no gradient, no update.
        device: Where it lies: ``"cpu"``, ``"cuda"``, see :func:`lazynet.device`; by default that of
            :func:`lazynet.set_default_device`.

    Example:
        >>> import lazynet as ln
        >>> p = ln.Parameter([[1.0, 2.0]])
        >>> graph = ln.Graph()
        >>> graph.backward(ln.sum(graph.parameter(p) * 3.0))
        >>> p.grad.tolist()
        [[3.0, 3.0]]
    """

    __array_ufunc__ = None

    def __init__(
        self,
        data: Any,
        init: initializers.Initializer | None = None,
        *,
        name: str = "",
        dtype: Any = "float32",
        sparse: bool = False,
        trainable: bool = True,
        device: str | Device | None = None,
    ) -> None:
        self.sparse, self._name, self._trainable = bool(sparse), name, bool(trainable)
        self._create(self._values(data, init), dtype, find_device(device))

    def _create(self, values: np.ndarray, dtype: Any, device: Device) -> None:
        code = dtype_code(dtype)
        rows = values.shape[0] if values.ndim > 1 else 1
        cols = math.prod(values.shape[1:] if values.ndim > 1 else values.shape)
        core = lib.ln_parameter_create(rows, cols, code, self.sparse, self._name.encode(), device._core)
        if core == ffi.NULL:
            raise last_error()
        self._core = ffi.gc(core, lib.ln_parameter_release)
        self._handle = int(lib.ln_parameter_handle(self._core))
        self.shape: tuple[int, ...] = values.shape
        self.dtype = DTYPES[code]
        self.device = device
        self.trainable = self._trainable
        self.value = values

    def convert(self, dtype: Any = None, device: str | Device | None = None) -> None:
        """Changes the element type or the device and forgets the gradient.

        Graphs that hold it cannot run backward any more; an optimizer is to be made after that.
        """
        new_dtype = self.dtype if dtype is None else DTYPES[dtype_code(dtype)]
        new_device = self.device if device is None else find_device(device)
        if (new_dtype, new_device) != (self.dtype, self.device):
            values, old = self.value, self._core
            self._create(values, new_dtype, new_device)
            check(lib.ln_parameter_set_replaced(old))
            _nodes.note_structure_change()

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles: everything but the gradient."""
        return _restored, (self.value.copy(), self.name, self.dtype.name, self.sparse, self.trainable, self.device.name)

    @staticmethod
    def _values(data: Any, init: initializers.Initializer | None) -> np.ndarray:
        if isinstance(data, tuple) and data and all(isinstance(size, (int, np.integer)) for size in data):
            if min(data) < 0:
                raise errors.ShapeError(f"parameter: shape {data} is given; sizes of at least 0 are required")
            values = np.asarray((init or initializers.zeros)(data, initializers.generator()))
            if values.shape != data:
                raise errors.ShapeError(f"parameter: the initialiser made {values.shape} of {data}")
            return values
        if init is not None:
            raise errors.NodeTypeError(
                f"parameter: {data!r} and an initialiser are given; a shape, a tuple of integers, is required with it"
            )
        try:
            values = np.asarray(data, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise errors.NodeTypeError(
                f"parameter: {type(data).__name__} is given; a shape, or numbers that make a matrix, is required"
            ) from error
        if values.ndim == 0:
            raise errors.ShapeError("parameter: one number is given; at least one dimension is required")
        return values

    def _elements(self, address: Any) -> Elements:
        return Elements(self.device, address, self.shape, self.dtype)

    def _array(self, address: Any, memory: type[_Memory]) -> np.ndarray:
        count = int(np.prod(self.shape, dtype=np.int64))
        buffer = memory(address, count * self.dtype.itemsize, self._core)
        return np.asarray(buffer).view(self.dtype)[:count].reshape(self.shape)

    @property
    def value(self) -> np.ndarray:
        """The elements: a view that may be written to; on a device a copy that may not, to be set as a whole."""
        address = lib.ln_parameter_value(self._core)
        if self.device.is_cpu:
            return self._array(address, _Value)
        try:
            values = self._elements(address).read()
            values.flags.writeable = False  # it would change nothing
            return values
        finally:
            lib.ln_parameter_value_done(self._core)

    @value.setter
    def value(self, values: Any) -> None:
        there = device_array(values, self.dtype, self.device, "parameter")
        array = np.asarray(values) if there is None else there
        if array.shape != self.shape:
            name = self.name or "without a name"
            raise errors.ShapeError(
                f"parameter {name}: values of shape {array.shape} are given; shape {self.shape} is required"
            )
        if self.device.is_cpu:
            self.value[...] = array
            return
        elements = self._elements(lib.ln_parameter_value(self._core))
        try:
            if isinstance(array, DeviceArray):
                elements.copy(array.address)
            else:
                elements.write(array)
        finally:
            lib.ln_parameter_value_done(self._core)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The elements on a GPU for other libraries: ``cupy.asarray(p)`` is a view that may be written to."""
        if self.device.is_cpu:
            raise AttributeError("the parameter is on the CPU")
        # Whoever has the address may write at any time: it is never given back.
        address = lib.ln_parameter_value(self._core)
        self.device.synchronize()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (int(ffi.cast("uintptr_t", address)), False),
            "version": 3,
        }

    def cupy(self) -> Any:
        """The elements as a CuPy array, a view on the GPU that may be written to.

        Raises:
            DeviceError: The parameter is on the CPU.
        """
        if self.device.is_cpu:
            raise errors.DeviceError("cupy: the parameter is on the CPU; p.value is its array there")
        import cupy

        return cupy.asarray(self)

    def __dlpack__(self, **options: Any) -> Any:
        """The elements for other libraries: ``torch.from_dlpack(p)`` is a view that may be written to."""
        return (self.value if self.device.is_cpu else self.cupy()).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where they are: kind and number of the device."""
        return dlpack_device(self.device)

    @property
    def grad(self) -> np.ndarray | SparseRows | None:
        """The gradient: a view (on a device a copy), :class:`SparseRows` of a sparse table, or None where there is none."""
        touched = lib.ln_parameter_touched(self._core)
        if not touched:
            return None
        if not self.sparse:
            address = lib.ln_parameter_gradient(self._core)
            return self._array(address, _Memory) if self.device.is_cpu else self._elements(address).read()
        rows = np.empty(touched, np.int32)
        values = np.empty((touched, self.shape[-1]), self.dtype)
        check(lib.ln_parameter_sparse_gradient(self._core, ffi.cast("int32_t *", rows.ctypes.data), pointer(values)))
        return SparseRows(rows, values)

    def _set_gradient(self, values: np.ndarray) -> None:
        """Of one that is dense and has a gradient."""
        self._elements(lib.ln_parameter_gradient(self._core)).write(values)

    def zero_grad(self) -> None:
        """Forgets the gradient."""
        check(lib.ln_parameter_zero_gradient(self._core))

    @property
    def trainable(self) -> bool:
        """Whether it gets gradients and updates; holds from the next graph on that uses it."""
        return self._trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self._trainable = bool(trainable)
        check(lib.ln_parameter_set_trainable(self._core, self._trainable))

    @property
    def name(self) -> str:
        """For error messages."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name
        check(lib.ln_parameter_set_name(self._core, name.encode()))

    def __repr__(self) -> str:
        where = "" if self.device.is_cpu else f" on {self.device.name}"
        return f"<Parameter {self.name or 'without a name'} {self.shape} {self.dtype}{where}>"

    # ---- arithmetic with nodes; between parameters there is no graph yet

    def _node(self, other: Any, sign: str) -> Node:
        if not isinstance(other, Node):
            raise errors.NodeTypeError(
                f"parameter {sign} {type(other).__name__}: no graph is known; make a node with graph.parameter(p)"
            )
        return other.graph.parameter(self)

    def __add__(self, other: Any) -> Node:
        return self._node(other, "+") + other

    def __sub__(self, other: Any) -> Node:
        return self._node(other, "-") - other

    def __mul__(self, other: Any) -> Node:
        return self._node(other, "*") * other

    def __truediv__(self, other: Any) -> Node:
        return self._node(other, "/") / other

    def __matmul__(self, other: Any) -> Node:
        return self._node(other, "@") @ other


def _restored(
    values: np.ndarray, name: str, dtype: str, sparse: bool, trainable: bool, device: str = "cpu"
) -> Parameter:
    return Parameter(values, name=name, dtype=dtype, sparse=sparse, trainable=trainable, device=device)


class _Memory:
    """Memory of the core for NumPy, kept alive by whoever looks at it."""

    def __init__(self, address: Any, size: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (int(ffi.cast("uintptr_t", address)), False),
            "version": 3,
        }


class _Value(_Memory):
    """The memory of a parameter's value, which may be written to as long as somebody looks at it."""

    def __del__(self, done: Any = lib.ln_parameter_value_done) -> None:
        done(self.owner)
