"""Plain text: lines, and two files aligned line by line."""

from __future__ import annotations

import codecs
from pathlib import Path

from .. import errors

__all__ = ["read_lines", "read_parallel"]


def read_lines(path: str | Path) -> list[str]:
    """Lines of a UTF-8 file without their ends; a byte-order mark is passed over.

    Only a line feed ends a line, with or without a carriage return before it, so that the lines of parallel files stay
    aligned whatever other separators the text holds.

    Raises:
        DataError: The file cannot be read or is not UTF-8; names file and line.
    """
    try:
        data = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise errors.DataError(f"{path} cannot be read: {error.strerror}; a text file is required") from None
    try:
        lines = data.decode("utf8").split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise errors.DataError(
            f"{path}, line {number}: byte {data[error.start]:#x} is not valid UTF-8; UTF-8 text is required"
        ) from None
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_parallel(source: str | Path, target: str | Path, *, drop_empty: bool = False) -> list[tuple[str, str]]:
    """Pairs of lines of two files that are aligned line by line.

    Args:
        source: The one file.
        target: The other, of as many lines.
        drop_empty: Leave out pairs of which one side or both are blank.

    Raises:
        DataError: A file cannot be read, or their numbers of lines differ.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise errors.DataError(
            f"read_parallel: {source} has {len(sources)} lines and {target} {len(targets)}; as many are required"
        )
    pairs = zip(sources, targets, strict=True)
    return [pair for pair in pairs if not drop_empty or all(side.strip() for side in pair)]
