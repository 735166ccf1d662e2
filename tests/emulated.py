"""A CUDA device on the CPU: the emulator's driver, and kernels that the C++ compiler made."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
FLAGS = os.environ.get("LAZYNET_EMULATOR_FLAGS", "-O1 -g")  # of the emulator and of kernels: sanitizers, for one
OUT = ROOT / "build" / "emulator" / hashlib.sha256(FLAGS.encode()).hexdigest()[:8]


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # a sanitizer
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


@lru_cache(maxsize=1)
def library() -> Path:
    """The emulator's driver, made anew where its sources have changed; tests skip without a C++ compiler."""
    if not shutil.which("g++") or not shutil.which("make"):
        pytest.skip("the emulated device needs g++ and make")
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes may want the same
        rule = "csrc/cuda/emulator/emulator.mk"
        _run("make", "-s", "-f", rule, f"OUT={OUT}", f"FLAGS={FLAGS}", "-j2", "library")
    return OUT / "libemulator.so"


@lru_cache(maxsize=1)
def _digest() -> str:
    digest = hashlib.sha256()
    for folder in ("csrc", "csrc/ops", "csrc/cuda", "csrc/cuda/emulator"):
        for path in sorted((ROOT / folder).glob("*")):
            if path.suffix in (".h", ".cu", ".def"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def kernels(family: str, source: str | None, defines: str) -> Path:
    """A family's kernels, or those of ``source``, as a shared object; ``defines`` are words divided by spaces."""
    text = f'#include "cuda/{family}.cu"\n' if source is None else source
    key = hashlib.sha256("\0".join((_digest(), text, defines)).encode()).hexdigest()[:24]
    path = OUT / f"{family}-{key}.so"
    if path.exists():
        return path
    OUT.mkdir(parents=True, exist_ok=True)
    unit = path.with_suffix(".cu")  # stays, for who looks up a line of generated source
    with tempfile.TemporaryDirectory(dir=OUT) as folder:  # other processes may be making the same
        written, made = Path(folder) / unit.name, Path(folder) / path.name
        written.write_text(text)
        written.replace(unit)
        defined = [f"-D{word}" for word in defines.split()]
        language = ["-std=c++17", "-DLN_EMULATOR", "-Icsrc", "-include", "csrc/cuda/emulator/emulator.h", "-x", "c++"]
        options = ["-shared", "-fPIC", "-fno-gnu-unique", *FLAGS.split(), *defined]
        _run("g++", *options, *language, str(unit), "-o", str(made))
        made.replace(path)
    return path


class EmulatedArray:
    """Memory of the emulated device, as another library would have it."""

    def __init__(self, runtime: EmulatedRuntime, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.runtime, self.shape, self.dtype = runtime, shape, np.dtype(dtype)
        self.address = runtime.allocate(self.nbytes)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "stream": 1,
        }

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def get(self) -> np.ndarray:
        array = np.empty(self.shape, self.dtype)
        self.runtime.copy("DtoH", array.ctypes.data, self.address, self.nbytes)
        return array

    def set(self, values: np.ndarray) -> EmulatedArray:
        array = np.ascontiguousarray(values, self.dtype)
        self.runtime.copy("HtoD", self.address, array.ctypes.data, self.nbytes)
        return self

    def __del__(self) -> None:
        self.runtime.deallocate(self.address, self.nbytes)


class EmulatedRuntime:
    """See :class:`lazynet.device.Runtime`."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.driver = self.blas = str(library())
        self._driver = ctypes.CDLL(self.driver, ctypes.RTLD_GLOBAL)
        self._driver.cuInit(0)
        context = ctypes.c_void_p()
        self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self._context = context

    def allocate(self, size: int) -> int:
        self._driver.cuCtxSetCurrent(self._context)
        address = ctypes.c_ulonglong()
        status = self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return 0 if status else address.value

    def deallocate(self, address: int, size: int) -> None:
        self._driver.cuCtxSetCurrent(self._context)
        self._driver.cuMemFree_v2(ctypes.c_ulonglong(address))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> EmulatedArray:
        return EmulatedArray(self, shape, dtype)

    def wait_for(self, stream: int | None) -> None:
        pass

    def copy(self, kind: str, to: int, source: int, size: int) -> None:
        self._driver.cuCtxSetCurrent(self._context)
        function = getattr(self._driver, f"cuMemcpy{kind}Async_v2")
        assert not function(ctypes.c_ulonglong(to), ctypes.c_ulonglong(source), ctypes.c_size_t(size), None)
        assert not self._driver.cuStreamSynchronize(None)

    def compile(self, family: str, source: str | None, defines: str) -> bytes:
        # A family whole: fewer compilations than one for every element type and operator.
        return str(kernels(family, source, "" if source is None else defines)).encode()
