"""Devices: where values, parameters and gradients lie and where kernels run."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import errors
from ._core import check, ffi, last_error, lib, pointer

__all__ = ["Device", "DeviceStatistics", "Elements", "Runtime", "device", "register", "set_default_device"]


class Runtime(Protocol):
    """What a kind of device brings: its libraries, memory and a compiler of kernels.

    Attributes:
        ordinal: The driver's number of the device.
        driver: The shared library of the CUDA driver.
        blas: The shared library of cuBLAS.
    """

    ordinal: int
    driver: str
    blas: str

    def allocate(self, size: int) -> int:
        """The address of ``size`` bytes on the device, aligned to 64; 0 where there are none."""

    def deallocate(self, address: int, size: int) -> None:
        """Takes them back."""

    def compile(self, family: str, source: str | None, defines: str) -> bytes:
        """What the driver loads as the module of a family's kernels, or of generated ``source``.

        Args:
            family: The name of a file in ``csrc/cuda``.
            source: Source text in its place.
            defines: Words to define, separated by spaces.
        """

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array on the device with a ``__cuda_array_interface__``."""

    def wait_for(self, stream: int | None) -> None:
        """Waits for the work of another library's stream: a handle, 1 the default stream, None nothing."""


class DeviceStatistics(NamedTuple):
    """Counts since the device was first used.

    Attributes:
        launches: Kernels and products that were started one by one, or captured.
        replays: Of captured launches, all at once.
        uploaded_bytes: What they were told, inputs among it.
    """

    launches: int
    replays: int
    uploaded_bytes: int


class Device:
    """The CPU, or a device with memory of its own; made by :func:`device`, once for each name.

    Attributes:
        name: ``"cpu"``, ``"cuda:0"``, ...

    Example:
        >>> import lazynet as ln
        >>> ln.device("cpu")
        <Device cpu>
    """

    def __init__(self, name: str, runtime: Runtime | None) -> None:
        self.name = name
        self.runtime = runtime
        self._images: list[Any] = []  # modules stay loaded
        self._self = ffi.new_handle(self)
        self._core = ffi.NULL
        if runtime is not None:
            strings = [ffi.new("char[]", text.encode()) for text in (name, runtime.driver, runtime.blas)]
            options = ffi.new(
                "ln_device_options *",
                {
                    "name": strings[0],
                    "ordinal": runtime.ordinal,
                    "driver": strings[1],
                    "blas": strings[2],
                    "self": self._self,
                    "allocate": lib.lazynet_device_allocate,
                    "deallocate": lib.lazynet_device_deallocate,
                    "compile": lib.lazynet_device_compile,
                },
            )
            self._core = lib.ln_device_create(options)
            if self._core == ffi.NULL:
                raise last_error()

    @property
    def is_cpu(self) -> bool:
        """Whether memory is the process's own."""
        return self.runtime is None

    def synchronize(self) -> None:
        """Waits until all work that was given to the device is done."""
        if not self.is_cpu:
            check(lib.ln_device_finish(self._core))

    def statistics(self) -> DeviceStatistics:
        """What was launched and uploaded so far; zeros for the CPU."""
        counts = ffi.new("ln_device_statistics *")
        if not self.is_cpu:
            check(lib.ln_device_get_statistics(self._core, counts))
        return DeviceStatistics(counts.launches, counts.replays, counts.uploaded_bytes)

    def allow_tf32(self, allow: bool) -> None:
        """Whether products of float32 may round their factors to TF32, which has 10 bits of mantissa; off at first.

        The CPU does not have it and goes on as before.
        """
        if not self.is_cpu:
            check(lib.ln_device_set_tf32(self._core, bool(allow)))

    def replay_schedules(self, replay: bool) -> None:
        """Whether launches that come again are captured as a CUDA graph and started at once; off at first.

        It pays where the same shapes come again and again and kernels are short. Ids and inputs may differ.
        """
        if not self.is_cpu:
            check(lib.ln_device_set_replay(self._core, bool(replay)))

    def __repr__(self) -> str:
        return f"<Device {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (self.name,)


class Elements(NamedTuple):
    """Elements of the core, one after another, on a device or not; whoever has it sees to it that they stay there."""

    device: Device
    address: Any
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """A copy."""
        array = np.empty(self.shape, self.dtype)
        check(lib.ln_device_read(self.device._core, pointer(array), self.address, self.nbytes))
        return array

    def write(self, values: np.ndarray) -> None:
        """Takes over values of the same shape."""
        array = np.ascontiguousarray(np.broadcast_to(values, self.shape), self.dtype)
        check(lib.ln_device_write(self.device._core, self.address, pointer(array), self.nbytes))

    def copy(self, address: Any) -> None:
        """Takes over as many from another place on the device; waits, since they may go then."""
        check(lib.ln_device_copy(self.device._core, self.address, address, self.nbytes))
        self.device.synchronize()


_CPU = Device("cpu", None)
_devices: dict[str, Device] = {"cpu": _CPU}
_kinds: dict[str, Callable[[int], Runtime]] = {}
_default = _CPU
_lock = threading.Lock()


def register(kind: str, runtime: Callable[[int], Runtime]) -> None:
    """Makes ``device("kind")`` and ``device("kind:N")`` known; ``runtime(N)`` is called when it is first asked for."""
    _kinds[kind] = runtime


def device(name: str | Device | None = None) -> Device:
    """The device of a name: ``"cpu"``, ``"cuda"`` (the first GPU), ``"cuda:1"``; without one the default device.

    Raises:
        DeviceError: The device cannot be used; says what is missing.
        NodeValueError: No device has such a name.
    """
    if name is None:
        return _default
    if isinstance(name, Device):
        return name
    if not isinstance(name, str):
        raise errors.NodeTypeError(f"device: {name!r} is given; a name such as 'cpu' or 'cuda' is required")
    kind, _, number = name.partition(":")
    if name == "cpu":
        return _CPU
    if kind not in _kinds or (number and not number.isdecimal()) or name.endswith(":"):
        known = ", ".join(repr(each) for each in ("cpu", *_kinds))
        raise errors.NodeValueError(
            f"device: {name!r} is given; one of {known}, or with a number 'cuda:1', is required"
        )
    ordinal = int(number or 0)
    full = f"{kind}:{ordinal}"
    with _lock:
        if full not in _devices:
            _devices[full] = Device(full, _kinds[kind](ordinal))
        return _devices[full]


def is_device_name(name: str) -> bool:
    """Whether it is meant as a device, and not as an element type."""
    return name.partition(":")[0] in ("cpu", *_kinds)


def set_default_device(name: str | Device) -> None:
    """Graphs and parameters that are made without a device are on this one from now on; at first the CPU."""
    global _default
    _default = device(name)


@atexit.register
def _close() -> None:
    """Memory is not given back one by one while the process ends: what it would be given to may be gone."""
    for each in _devices.values():
        if not each.is_cpu:
            lib.ln_device_close(each._core)


# ---- what the core calls


def _runtime(handle: Any) -> tuple[Device, Runtime]:
    each: Device = ffi.from_handle(handle)
    assert each.runtime is not None
    return each, each.runtime


@ffi.def_extern(name="lazynet_device_allocate", onerror=lambda *_: ffi.NULL)
def _allocate(handle: Any, size: int) -> Any:
    return ffi.cast("void *", _runtime(handle)[1].allocate(size))


@ffi.def_extern(name="lazynet_device_deallocate")
def _deallocate(handle: Any, address: Any, size: int) -> None:
    _runtime(handle)[1].deallocate(int(ffi.cast("uintptr_t", address)), size)


@ffi.def_extern(name="lazynet_device_compile")
def _compile(handle: Any, family: Any, source: Any, defines: Any, error: Any, room: int) -> Any:
    each, runtime = _runtime(handle)
    try:
        text = None if source == ffi.NULL else ffi.string(source).decode()
        image = ffi.new("char[]", runtime.compile(ffi.string(family).decode(), text, ffi.string(defines).decode()))
    except Exception as problem:
        message = f"{type(problem).__name__}: {problem}".encode()[: room - 1]
        ffi.memmove(error, message + b"\0", len(message) + 1)
        return ffi.NULL
    each._images.append(image)
    return image
