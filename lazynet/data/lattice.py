"""Word lattices: a sequence of characters with all words of a lexicon that it holds (Zhang and Yang 2018).

The structure of a lattice is one that ``ln.recur`` places a cell over. What a place is can be told by its children::

    @ln.cell
    def step(self, row, states):
        if row is None:                            # the start: hands on the initial state
            return states[0]
        if len(states) == 1:                       # a word: the state of its first character
            return self.word(row, states[0])
        before, _start, *words = states            # a character: the one before it, and the words that end with it
        return self.character(row, before, words)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import errors
from ..recur import Structure

__all__ = ["Lexicon", "Span", "WordLattice"]


class Span(NamedTuple):
    """A word over ``characters[begin:end]``."""

    begin: int
    end: int
    word: str


class WordLattice:
    """Characters, and words over them in the order of their ends.

    The input of its cells has a row for every character, and below them one for every word of ``words``.

    Args:
        characters: A text, or a list of strings.
        words: Spans of at least two characters.

    Example:
        >>> from lazynet.data import Lexicon
        >>> lattice = Lexicon(["南京", "市长", "长江", "大桥", "长江大桥"]).lattice("南京市长江大桥")
        >>> [span.word for span in lattice.words]
        ['南京', '市长', '长江', '长江大桥', '大桥']
        >>> len(lattice.structure()), lattice.places()
        (13, [1, 3, 4, 6, 8, 9, 12])
    """

    def __init__(self, characters: Sequence[str], words: Iterable[Span | tuple[int, int, str]] = ()) -> None:
        self.characters = characters
        self.words = sorted((Span(*word) for word in words), key=lambda span: (span.end, span.begin))
        self._placed: dict[bool, tuple[Structure, list[int]]] = {}
        for begin, end, word in self.words:
            if begin < 0 or end > len(characters) or end - begin < 2:
                raise errors.NodeIndexError(
                    f"lattice: {word!r} spans characters {begin} to {end}; at least two of the {len(characters)} are required"
                )

    def __len__(self) -> int:
        return len(self.characters)

    def structure(self, reverse: bool = False) -> Structure:
        """The places for ``ln.recur``, from left to right or in reverse; the rows that they read are the same.

        Place 0 is the start. It has no children and reads no row, and so takes the ``initial`` of ``ln.recur``, which must
        be given. A word has one child, its first character; it comes before its last character. A character has as
        children the character before it, or the start, then the start, then all words that it ends. In reverse *first*,
        *last* and *before* change sides.
        """
        return self._place(reverse)[0]

    def places(self, reverse: bool = False) -> list[int]:
        """For every character its place in the structure."""
        return self._place(reverse)[1]

    def _place(self, reverse: bool) -> tuple[Structure, list[int]]:
        """The structure and the characters' places, made when they are first asked for."""
        if reverse not in self._placed:
            count = len(self.characters)
            ending: list[list[tuple[int, int]]] = [[] for _ in range(count)]
            for row, (begin, end, _) in enumerate(self.words, count):
                first, last = (end - 1, begin) if reverse else (begin, end - 1)
                ending[last].append((first, row))
            children: list[list[int]] = [[]]
            rows, places, before = [-1], [0] * count, 0
            for character in reversed(range(count)) if reverse else range(count):
                words = range(len(children), len(children) + len(ending[character]))
                for first, row in ending[character]:
                    children.append([places[first]])
                    rows.append(row)
                before, below = len(children), before
                children.append([below, 0, *words])
                rows.append(character)
                places[character] = before
            self._placed[reverse] = Structure(children, rows), places
        return self._placed[reverse]


class Lexicon:
    """Words to be found in sequences of characters.

    Args:
        words: Those of fewer than two characters are passed over: characters have places of their own.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = frozenset(word for word in words if len(word) > 1)
        self._longest = max(map(len, self.words), default=0)

    def lattice(self, characters: Sequence[str]) -> WordLattice:
        """The characters with all the words that they hold, however these overlap."""
        spans = []
        for begin in range(len(characters)):
            for end in range(begin + 2, min(begin + self._longest, len(characters)) + 1):
                word = "".join(characters[begin:end])
                if word in self.words:
                    spans.append(Span(begin, end, word))
        return WordLattice(characters, spans)
