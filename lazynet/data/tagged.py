"""Tagged sentences, one a line: ``word|tag word|tag ...``."""

from __future__ import annotations

from pathlib import Path

from .. import errors
from .text import read_lines

__all__ = ["read_tagged"]


def read_tagged(path: str | Path) -> list[tuple[list[str], list[str]]]:
    """Words and tags of every sentence that is not empty.

    Raises:
        DataError: The file is missing or malformed; names file and line.
    """
    sentences = []
    for number, line in enumerate(read_lines(path), 1):
        pairs = [item.rsplit("|", 1) for item in line.split()]
        for pair in pairs:
            if len(pair) != 2 or not all(pair):
                raise errors.DataError(f"{path}, line {number}: {'|'.join(pair)!r} is given; word|tag is required")
        if pairs:
            sentences.append(([word for word, _ in pairs], [tag for _, tag in pairs]))
    return sentences
