"""NVIDIA GPUs: found through CuPy, whose memory pool gives the memory; kernels are compiled at first use by NVRTC."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from . import errors
from .device import Device, device, register

__all__ = ["cache_folder", "compile_kernels", "is_available", "synchronize"]

_SOURCES = Path(__file__).resolve().parent / "_csrc"
_INSTALL = "pip install 'lazynet[cuda13]' (CUDA 13) or 'lazynet[cuda12]' (CUDA 12)"


def is_available() -> bool:
    """Whether ``device="cuda"`` can be used here.

    Example:
        >>> import lazynet as ln
        >>> device = "cuda" if ln.cuda.is_available() else "cpu"
    """
    try:
        return bool(_cupy().cuda.runtime.getDeviceCount())
    except Exception:  # the package, the driver or a GPU is missing
        return False


def synchronize(name: str | Device = "cuda") -> None:
    """Waits until all work that was given to a GPU is done, as for measuring time."""
    device(name).synchronize()


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``LAZYNET_CACHE``, or ``lazynet`` in the user's cache folder."""
    own = os.environ.get("LAZYNET_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lazynet"


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise errors.DeviceError(f"cuda: the package CuPy is not installed; {_INSTALL} brings it") from error
    return cupy


# ---- kernels


@lru_cache(maxsize=1)
def _source_digest() -> bytes:
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def compile_kernels(family: str, source: str | None, defines: str, capability: str) -> bytes:
    """The kernels of a family as a cubin, from the cache on disk or by NVRTC.

    Args:
        family: The name of a file in ``csrc/cuda``.
        source: Source text in its place, or None.
        defines: Words to define, separated by spaces.
        capability: Of the device: ``"90"``.
    """
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise errors.DeviceError(f"cuda: CuPy's NVRTC cannot be loaded ({error}); {_INSTALL} brings it") from error
    text = f'#include "cuda/{family}.cu"\n' if source is None else source
    options = (
        "-std=c++17",
        "-default-device",
        f"-arch={_architecture(nvrtc, capability)}",
        f"-I{_SOURCES}",
        f"-I{_SOURCES / 'cuda' / 'nvrtc'}",
        *(f"-D{word}" for word in defines.split()),
    )
    key = hashlib.sha256(_source_digest())
    for part in (text, repr(nvrtc.getVersion()), *options):
        key.update(part.encode() + b"\0")
    cached = cache_folder() / "kernels" / f"{family}-{key.hexdigest()[:32]}.cubin"
    try:
        return cached.read_bytes()
    except OSError:
        pass
    image = _compile(nvrtc, text, family, options)
    _keep(cached, image)
    return image


def _architecture(nvrtc: Any, capability: str) -> str:
    """The device's own, or of devices newer than NVRTC the nearest, whose code the driver translates."""
    known = [int(each) for each in nvrtc.getSupportedArchs()]
    if int(capability) in known:
        return f"sm_{capability}"
    older = [each for each in known if each < int(capability)]
    if not older:
        raise errors.DeviceError(
            f"cuda: a GPU of compute capability {capability} is given; at least {min(known)} is required by this NVRTC"
        )
    return f"compute_{max(older)}"


def _compile(nvrtc: Any, text: str, family: str, options: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(text, f"{family}.cu", [], [])
    try:
        nvrtc.compileProgram(program, list(options))
        for_one = any(option.startswith("-arch=sm_") for option in options)
        image: bytes = nvrtc.getCUBIN(program) if for_one else nvrtc.getPTX(program)
        return image
    except nvrtc.NVRTCError as error:
        raise errors.DeviceError(f"cuda: NVRTC: {error}: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)


def _keep(path: Path, image: bytes) -> None:
    """Other processes may be writing the same; a folder that cannot be written to is done without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(image)
        os.replace(file.name, path)
    except OSError:
        pass


# ---- the runtime


class CupyRuntime:
    """See :class:`lazynet.device.Runtime`."""

    def __init__(self, ordinal: int) -> None:
        cupy = _cupy()
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:  # of CuPy's own, which depend on how it is built
            raise errors.DeviceError(
                f"cuda: no GPU can be used ({error}); an NVIDIA GPU and its driver are required"
            ) from error
        if ordinal >= count:
            raise errors.DeviceError(f"cuda: device {ordinal} is asked for; this machine has {count}")
        self.ordinal = ordinal
        self.driver = "libcuda.so.1"
        self._device = cupy.cuda.Device(ordinal)
        with self._device:
            self.blas = _cublas(cupy)
        self._alloc, self._out_of_memory = cupy.cuda.alloc, cupy.cuda.memory.OutOfMemoryError
        self._current_stream = cupy.cuda.get_current_stream
        self._memory: dict[int, Any] = {}

    def allocate(self, size: int) -> int:
        """From CuPy's memory pool."""
        try:
            with self._device:
                memory = self._alloc(max(size, 1))
                # Who had it before may still be working there, in the order of CuPy's own stream.
                self._current_stream().synchronize()
        except self._out_of_memory:
            return 0
        self._memory[memory.ptr] = memory
        return int(memory.ptr)

    def deallocate(self, address: int, size: int) -> None:
        """Back to CuPy's memory pool."""
        del self._memory[address]

    def compile(self, family: str, source: str | None, defines: str) -> bytes:
        """By NVRTC, for this device alone."""
        return compile_kernels(family, source, defines, self._device.compute_capability)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A CuPy array."""
        with self._device:
            return _cupy().empty(shape, dtype)

    def wait_for(self, stream: int | None) -> None:
        """Waits for the work of another library's stream."""
        if stream is not None:
            _cupy().cuda.runtime.streamSynchronize(stream)


def _cublas(cupy: Any) -> str:
    """The library that CuPy has loaded; its name carries the version."""
    cupy.cuda.device.get_cublas_handle()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "/libcublas.so" in path:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
            return path
    raise errors.DeviceError("cuda: CuPy has loaded no cuBLAS; " + _INSTALL)


if sys.platform.startswith("linux"):
    register("cuda", CupyRuntime)
