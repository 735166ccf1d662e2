"""Arrays of other libraries: CUDA's array interface and DLPack, in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from ._core import ffi

if TYPE_CHECKING:
    from .device import Device

__all__ = ["DeviceArray", "device_array", "dlpack_device"]


class DeviceArray:
    """A contiguous array of another library in the memory of a device; what it was made of stays alive with it.

    Attributes:
        address: Of the first element.
        shape: Its sizes.
    """

    def __init__(self, source: Any, dtype: np.dtype, device: Device, what: str) -> None:
        interface = source.__cuda_array_interface__
        self.source = source
        self.shape = tuple(int(size) for size in interface["shape"])
        given, strides = np.dtype(interface["typestr"]), interface.get("strides")
        if device.is_cpu:
            raise errors.NodeTypeError(
                f"{what}: {type(source).__name__} on a GPU is given; an array in ordinary memory is required on {device.name}"
            )
        if given != dtype or interface.get("mask") is not None:
            raise errors.NodeTypeError(f"{what}: elements of {given} are given on a device; {dtype} is required")
        contiguous = np.empty(self.shape, np.uint8).strides if 0 not in self.shape else None
        if strides and contiguous is not None:
            steps = tuple(step * dtype.itemsize for step in contiguous)
            if any(a != b for a, b, size in zip(strides, steps, self.shape, strict=True) if size > 1):
                raise errors.NodeTypeError(
                    f"{what}: an array with strides {tuple(strides)} is given on a device; contiguous rows are required"
                )
        self.address = ffi.cast("void *", interface["data"][0])
        assert device.runtime is not None
        device.runtime.wait_for(interface.get("stream"))


def device_array(value: Any, dtype: np.dtype, device: Device, what: str) -> DeviceArray | None:
    """``value`` where it lies in a device's memory, as CuPy's and PyTorch's GPU arrays do; None where it does not.

    Args:
        value: Any object.
        dtype: What its elements must be.
        device: Where it is wanted.
        what: For error messages.
    """
    if hasattr(value, "__cuda_array_interface__"):
        return DeviceArray(value, dtype, device, what)
    on_device = getattr(value, "__dlpack_device__", None)
    if on_device is None or isinstance(value, np.ndarray) or int(on_device()[0]) not in (_CUDA, _CUDA_MANAGED):
        return None
    import cupy  # the only way to read it; whoever has such an array has a GPU

    return DeviceArray(cupy.from_dlpack(value), dtype, device, what)


_CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13  # DLDeviceType


def dlpack_device(device: Device) -> tuple[int, int]:
    """Kind and number of a device, as DLPack has them."""
    return (_CPU, 0) if device.runtime is None else (_CUDA, device.runtime.ordinal)
