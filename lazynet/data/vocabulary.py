"""Tokens and their ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import TypeVar

from .. import errors
from .text import read_lines

__all__ = ["Vocabulary"]

Item = TypeVar("Item")

_MARK = "\ufeff"
# A line break would end a token's line in the file; a surrogate has no UTF-8.
_REFUSED = re.compile("[\r\n\ud800-\udfff]")


class Vocabulary:
    """Tokens numbered from 0, in their order.

    Args:
        tokens: All of them, none twice.
        unknown: The token that stands in for all that are not held. Where it is not among ``tokens``, encoding a token
            that is not held is an error.

    Raises:
        DataError: A token comes twice, is empty or holds a line break.

    Example:
        >>> from lazynet.data import Vocabulary
        >>> words = Vocabulary.build([["the", "dog", "saw", "the", "cat"]], specials=("<unk>", "</s>"))
        >>> words.tokens
        ('<unk>', '</s>', 'the', 'dog', 'saw', 'cat')
        >>> words.encode(["the", "cow", "saw"]), words["</s>"], "cow" in words, len(words)
        ([2, 0, 4], 1, False, 6)
        >>> words.decode([2, 3])
        ['the', 'dog']
    """

    def __init__(self, tokens: Iterable[str], unknown: str | None = "<unk>") -> None:
        self.tokens = tuple(_no_text(tokens, "vocabulary"))
        self.unknown = unknown
        self._ids = _numbered(self.tokens, 0, "vocabulary, token")

    @classmethod
    def build(
        cls,
        sentences: Iterable[Iterable[str]],
        min_count: int = 1,
        max_size: int | None = None,
        specials: Sequence[str] = ("<unk>",),
        unknown: str | None = "<unk>",
    ) -> Vocabulary:
        """The tokens of a corpus; the arguments are those of :meth:`from_counts`."""
        counts: Counter[str] = Counter()
        for sentence in _no_text(sentences, "vocabulary"):
            counts.update(_no_text(sentence, "vocabulary"))
        return cls.from_counts(counts, min_count, max_size, specials, unknown)

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        min_count: int = 1,
        max_size: int | None = None,
        specials: Sequence[str] = ("<unk>",),
        unknown: str | None = "<unk>",
    ) -> Vocabulary:
        """The specials in their order, then the tokens by falling count; of equal counts the first comes first.

        Args:
            counts: How often each token is seen.
            min_count: Rarer tokens are left out.
            max_size: How many tokens are kept at most, the specials among them.
            specials: Tokens that are held in any case, such as ``<s>`` and ``</s>``.
            unknown: As of :class:`Vocabulary`.
        """
        specials = tuple(_no_text(specials, "vocabulary"))
        if max_size is not None and max_size < len(specials):
            raise errors.NodeValueError(
                f"vocabulary: max_size {max_size} is given; room for the {len(specials)} specials is required"
            )
        kept = [token for token, count in counts.items() if count >= min_count and token not in specials]
        kept.sort(key=lambda token: -counts[token])
        return cls([*specials, *kept][:max_size], unknown)

    @classmethod
    def load(cls, path: str | Path, unknown: str | None = "<unk>") -> Vocabulary:
        """A vocabulary from a UTF-8 file, one token a line.

        Raises:
            DataError: The file is missing or malformed; names file and line.
        """
        tokens = read_lines(path)
        _numbered(tokens, 1, f"{path}, line")
        return cls(tokens, unknown)

    def save(self, path: str | Path) -> None:
        """Writes a UTF-8 file, one token a line, that :meth:`load` reads."""
        text = "".join(f"{token}\n" for token in self.tokens)
        # A mark at the head of the file is not read as part of the first token, so one that begins it is written twice.
        mark = _MARK if text.startswith(_MARK) else ""
        try:
            Path(path).write_bytes((mark + text).encode("utf8"))
        except OSError as error:
            raise errors.DataError(f"{path} cannot be written: {error.strerror}") from None

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """The id of every token, that of ``unknown`` for those that are not held.

        Raises:
            DataError: A token is not held and neither is ``unknown``; names it.
        """
        ids, unknown = self._ids, self._ids.get(self.unknown) if self.unknown is not None else None
        if unknown is None:
            return [self[token] for token in _no_text(tokens, "encode")]
        return [ids.get(token, unknown) for token in _no_text(tokens, "encode")]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The token of every id."""
        tokens, size = self.tokens, len(self.tokens)
        try:
            numbers = [index(number) for number in ids]
        except TypeError as error:
            raise errors.NodeTypeError(f"decode: {error}; integers are required") from None
        for number in numbers:
            if not 0 <= number < size:
                raise errors.NodeIndexError(f"decode: id {number} is given; one from 0 to {size - 1} is required")
        return [tokens[number] for number in numbers]

    def __getitem__(self, token: str) -> int:
        """The id of a token, that of ``unknown`` where it is not held."""
        found = self._ids.get(token)
        if found is None and self.unknown is not None:
            found = self._ids.get(self.unknown)
        if found is None:
            raise errors.DataError(
                f"encode: token {token!r} is not in the vocabulary; one of its {len(self)} tokens, or a vocabulary that "
                f"holds a token for unknown ones (unknown={self.unknown!r}), is required"
            )
        return found

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tokens)

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} tokens, unknown {self.unknown!r}>"


def _no_text(tokens: Iterable[Item], op: str) -> Iterable[Item]:
    """The same; a text, whose characters are hardly meant, is refused."""
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise errors.NodeTypeError(
            f"{op}: {tokens!r} is given; a list of tokens is required, such as text.split() or list(text)"
        )
    return tokens


def _numbered(tokens: Iterable[str], first: int, place: str) -> dict[str, int]:
    """The number of every token, counted from ``first``; errors say ``place`` and number."""
    ids: dict[str, int] = {}
    for number, token in enumerate(tokens, first):
        if not isinstance(token, str):
            raise errors.NodeTypeError(f"{place} {number}: {token!r} is given; a string is required")
        if not token or _REFUSED.search(token):
            raise errors.DataError(f"{place} {number}: {token!r} is given; text without line breaks is required")
        if ids.setdefault(token, number) != number:
            raise errors.DataError(f"{place} {number}: {token!r} is given again; every token once is required")
    return ids
