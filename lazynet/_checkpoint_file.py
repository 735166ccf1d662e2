"""A file of arrays and JSON in the safetensors format that is whole or not there, and knows when it is damaged.

The file's metadata has one entry, ``lazynet``: JSON with the number of the format, what was saved besides arrays, a
checksum of every array, and one of all that.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from .errors import CheckpointError

__all__ = ["CheckpointFile", "read", "write"]

_ENTRY = "lazynet"
_FORMAT = 1


class CheckpointFile(NamedTuple):
    """What was read.

    Attributes:
        content: JSON.
        arrays: Those that were asked for, by name.
        shapes: Of all arrays.
    """

    content: dict[str, Any]
    arrays: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]


def _checksum(value: Any) -> int:
    """Of an array with its shape and type, or of JSON."""
    if isinstance(value, np.ndarray):
        return zlib.crc32(np.asarray(value, order="C").data, zlib.crc32(f"{value.dtype} {value.shape}".encode()))
    return zlib.crc32(json.dumps(value).encode())


def write(path: str | os.PathLike[str], content: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Puts a new file in the place of ``path``, at once.

    Raises:
        CheckpointError: It cannot be written; then the file that was there is as it was.
    """
    kept = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    checksums = {name: _checksum(array) for name, array in kept.items()}
    body = {"format": _FORMAT, "content": content, "checksums": checksums}
    entry = json.dumps({"checksum": _checksum(body), **body})
    data = safetensors.numpy.save(kept, {_ENTRY: entry})
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".lazynet-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise CheckpointError(f"save: {os.fspath(path)} cannot be written: {error.strerror}") from error
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """Makes the new name last through a loss of power, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> CheckpointFile:
    """Reads what :func:`write` wrote.

    Args:
        path: Of the file.
        wanted: Of an array's name, whether to read it.

    Raises:
        CheckpointError: The file is missing, damaged, of another program or of a newer format; says which.
    """
    where = f"load: {os.fspath(path)}"
    try:
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            body = _body(where, file.metadata() or {})
            if set(file.keys()) != set(body["checksums"]):
                raise CheckpointError(f"{where} is damaged: arrays are missing or of other names")
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in body["checksums"]}
            arrays = {name: file.get_tensor(name) for name in body["checksums"] if wanted(name)}
    except OSError as error:
        raise CheckpointError(f"{where} cannot be read: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{where} is damaged, or was not written by save: {error}") from error
    damaged = [name for name, array in arrays.items() if _checksum(array) != body["checksums"][name]]
    if damaged:
        raise CheckpointError(f"{where} is damaged: the checksums of {', '.join(damaged)} are wrong")
    return CheckpointFile(body["content"], arrays, shapes)


def _body(where: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    if _ENTRY not in metadata:
        raise CheckpointError(
            f"{where} was not written by save; weights of another program go into a model with "
            "model.load_state_dict(safetensors.numpy.load_file(path))"
        )
    try:
        entry = json.loads(metadata[_ENTRY])
        if entry["format"] > _FORMAT:
            raise CheckpointError(
                f"{where} is of format {entry['format']}; at most {_FORMAT} is required: update LazyNet"
            )
        body = {name: entry[name] for name in ("format", "content", "checksums")}
        if _checksum(body) != entry["checksum"]:
            raise ValueError("the checksum of its metadata is wrong")
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    return body
