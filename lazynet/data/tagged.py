"""Tagged sentences, one a line: ``word|tag word|tag ...``."""

from __future__ import annotations

from pathlib import Path

from .. import errors

__all__ = ["read_tagged"]


def read_tagged(path: str | Path) -> list[tuple[list[str], list[str]]]:
    """Words and tags of every sentence that is not empty.

    Raises:
        DataError: The file is missing or malformed; names file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf8").split("\n")
    except OSError as error:
        raise errors.DataError(f"tagged sentences: {path} cannot be read: {error.strerror}") from None
    sentences = []
    for number, line in enumerate(lines, 1):
        pairs = [item.rsplit("|", 1) for item in line.split()]
        for pair in pairs:
            if len(pair) != 2:
                raise errors.DataError(f"{path}, line {number}: {pair[0]!r} has no tag; word|tag is required")
        if pairs:
            sentences.append(([word for word, _ in pairs], [tag for _, tag in pairs]))
    return sentences
