"""Loads the core and its BLAS, and turns the core's failures into exceptions. No policy."""

from __future__ import annotations

import operator
import os
from typing import Any, NoReturn

import numpy as np

from . import errors
from ._lib import ffi, lib

__all__ = ["DTYPES", "check", "dtype_code", "ffi", "integer", "lib", "pointer", "raise_last_error"]

#: NumPy element types by the core's code.
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def last_error() -> errors.LazyNetError:
    """The exception of this thread's last failure in the core."""
    kind = errors.BY_STATUS.get(lib.ln_error_status(), errors.InternalError)
    return kind(ffi.string(lib.ln_error_message()).decode())


def raise_last_error() -> NoReturn:
    """Raises the exception of this thread's last failure in the core."""
    raise last_error()


def check(status: int) -> int:
    """Returns a status or count that is not negative, and raises for one that is."""
    if status < 0:
        raise_last_error()
    return status


def dtype_code(dtype: Any) -> int:
    """The core's code of an element type: float32 or float64."""
    try:
        return DTYPES.index(np.dtype(dtype))
    except (TypeError, ValueError):
        raise errors.NodeTypeError(f"dtype: {dtype!r} is given; float32 or float64 is required") from None


def pointer(array: np.ndarray) -> Any:
    """The address of a contiguous array's elements, for a call that does not keep it."""
    return ffi.cast("void *", array.ctypes.data)


def integer(name: str, what: str, value: Any) -> int:
    """An integer of at most 64 bits that was given for a setting."""
    try:
        number = operator.index(value)
    except TypeError:
        raise errors.NodeTypeError(f"{name}: {what} {value!r} is given; an integer is required") from None
    if not -(2**63) <= number < 2**63:
        raise errors.NodeValueError(f"{name}: {what} {number} is given; an integer of 64 bits is required")
    return number


def blas_path() -> str:
    """The shared library that the scipy-openblas32 wheel brings."""
    try:
        import scipy_openblas32
    except ImportError as error:
        raise errors.DeviceError(
            "BLAS: the package scipy-openblas32 is not installed; install it, or set LAZYNET_BLAS to a CBLAS library"
        ) from error
    folder = scipy_openblas32.get_lib_dir()
    name = f"lib{scipy_openblas32.get_library(fullname=False)}"
    for suffix in (".so", ".dylib"):
        candidate = os.path.join(folder, name + suffix)
        if os.path.exists(candidate):
            return candidate
    raise errors.DeviceError(f"BLAS: {folder} holds no {name}; reinstall scipy-openblas32")


def _load_blas() -> None:
    own = os.environ.get("LAZYNET_BLAS")
    path, prefix = (own, os.environ.get("LAZYNET_BLAS_PREFIX", "")) if own else (blas_path(), "scipy_")
    check(lib.ln_load_blas(path.encode(), prefix.encode(), b""))


_load_blas()


def set_num_threads(threads: int) -> None:
    """Sets how many threads share the work of one kernel, 1 or more; by default all cores.

    Results are bit-identical from run to run for a given number.
    """
    number = integer("set_num_threads", "threads", threads)
    check(lib.ln_set_num_threads(min(max(number, -1), 2**31 - 1)))


def num_threads() -> int:
    """How many threads share the work of one kernel."""
    return int(lib.ln_num_threads())


def vector_unit() -> str:
    """The vector unit whose kernels run: ``"avx512"``, ``"avx2"``, ``"baseline"`` or ``"portable"``."""
    return str(ffi.string(lib.ln_vector_unit()).decode())
