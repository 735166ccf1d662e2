"""Labelled documents, one a line: ``label<TAB>sentence<TAB>sentence ...``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .. import errors
from .text import read_lines

__all__ = ["Document", "read_documents"]


class Document(NamedTuple):
    """A label and the tokens of every sentence; a text without sentence ends is one sentence."""

    label: str
    sentences: list[list[str]]


def read_documents(path: str | Path) -> list[Document]:
    """Documents of a file; empty lines and empty sentences are passed over, tokens are split at blanks.

    Raises:
        DataError: The file is missing or malformed; names file and line.
    """
    documents = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        label, *texts = line.split("\t")
        sentences = [tokens for tokens in (text.split() for text in texts) if tokens]
        if not label.strip() or not sentences:
            raise errors.DataError(f"{path}, line {number}: {line!r} is given; label<TAB>sentence is required")
        documents.append(Document(label.strip(), sentences))
    return documents
