"""Dependency trees in CoNLL-U, the format of Universal Dependencies (universaldependencies.org/format.html)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .. import errors
from .text import read_lines

__all__ = ["EmptyNode", "MultiwordToken", "Sentence", "Word", "is_projective", "read_conllu"]

_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_ID = re.compile(r"([0-9]+)(?:([-.])([0-9]+))?")


@dataclass(slots=True)
class Word:
    """A syntactic word; what the file leaves open is ``"_"``, no features, or a head that is None."""

    id: int
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: dict[str, str]
    head: int | None
    deprel: str
    deps: str
    misc: str


class MultiwordToken(NamedTuple):
    """A token as it is written that stands for the words ``first`` to ``last``: *don't* for *do* and *n't*."""

    first: int
    last: int
    form: str
    misc: str


class EmptyNode(NamedTuple):
    """A word that is not written, of the enhanced graph only: ``after.number`` is its ID."""

    after: int
    number: int
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: dict[str, str]
    deps: str
    misc: str


@dataclass(slots=True)
class Sentence:
    """The words of the tree; multi-word tokens and empty nodes are kept apart from them.

    ``comments`` are the lines without their ``#``; those of the form ``key = value`` are in ``metadata`` too.
    """

    words: list[Word] = field(default_factory=list)
    multiword_tokens: list[MultiwordToken] = field(default_factory=list)
    empty_nodes: list[EmptyNode] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def forms(self) -> list[str]:
        """The form of every word."""
        return [word.form for word in self.words]

    @property
    def heads(self) -> list[int]:
        """The head of every word, 0 for the root.

        Raises:
            DataError: A word has none.
        """
        heads = [word.head for word in self.words if word.head is not None]
        if len(heads) != len(self.words):
            raise errors.DataError(f"heads: {len(heads)} of {len(self.words)} words have a head; one each is required")
        return heads

    def __len__(self) -> int:
        return len(self.words)


def is_projective(heads: Sequence[int]) -> bool:
    """Whether the words form a tree none of whose arcs cross, with the root left of the sentence.

    Args:
        heads: The head of every word: words are numbered from 1, and 0 is the root.

    Example:
        >>> is_projective([2, 0, 2]), is_projective([3, 4, 0, 3]), is_projective([2, 1])
        (True, False, False)
    """
    count = len(heads)
    dependents: list[list[int]] = [[] for _ in range(count + 1)]
    for word, head in enumerate(heads, 1):
        if not 0 <= head <= count:
            raise errors.NodeIndexError(
                f"is_projective: word {word} has head {head}; 0, or a word from 1 to {count}, is required"
            )
        dependents[head].append(word)
    # Read from left to right, a projective tree gives the words in their order; words in a circle are never met.
    met = 0
    stack: list[tuple[int, bool]] = [(0, True)]
    while stack:
        word, whole = stack.pop()
        if whole:
            right = [(each, True) for each in dependents[word] if each > word]
            left = [(each, True) for each in dependents[word] if each < word]
            stack += [*right[::-1], (word, False), *left[::-1]]
        elif word != met:
            return False
        else:
            met += 1
    return met == count + 1


def read_conllu(path: str | Path) -> list[Sentence]:
    """Sentences of a file; blocks without words are passed over.

    Raises:
        DataError: The file is missing or malformed, or heads form a circle; names file and line.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w") as file:
        ...     print("# text = It works", file=file)
        ...     print("1", "It", "it", "PRON", "PRP", "Number=Sing|Person=3", "2", "nsubj", "_", "_", sep="\\t", file=file)
        ...     print("2", "works", "work", "VERB", "VBZ", "_", "0", "root", "_", "_", sep="\\t", file=file, flush=True)
        ...     [sentence] = read_conllu(file.name)
        >>> sentence.forms, sentence.heads, sentence.metadata["text"], sentence.words[0].feats["Person"]
        (['It', 'works'], [2, 0], 'It works', '3')
    """
    sentences = []
    rows: list[tuple[int, str]] = []
    for number, line in enumerate([*read_lines(path), ""], 1):
        if line.strip():
            rows.append((number, line))
        elif rows:
            sentence = _sentence(path, rows)
            if sentence.words:
                sentences.append(sentence)
            rows = []
    return sentences


def _sentence(path: str | Path, rows: list[tuple[int, str]]) -> Sentence:
    """The sentence of the numbered lines of one block."""
    sentence = Sentence()
    lines: list[int] = []
    try:
        for number, line in rows:
            if line.startswith("#"):
                _add_comment(sentence, line)
            else:
                _add_row(sentence, line)
            if len(sentence) > len(lines):
                lines.append(number)
        if _covered(sentence) > len(sentence):
            raise errors.DataError(
                f"the sentence has {len(sentence)} words; those of the multi-word token are required"
            )
        fault = _fault([word.head or 0 for word in sentence.words])
        if fault is not None:
            number = lines[fault[0] - 1]
            raise errors.DataError(fault[1])
    except errors.DataError as error:
        raise errors.DataError(f"{path}, line {number}: {error}") from None
    return sentence


def _add_comment(sentence: Sentence, line: str) -> None:
    comment = line[1:].strip()
    sentence.comments.append(comment)
    key, equals, value = comment.partition("=")
    if equals:
        sentence.metadata[key.strip()] = value.strip()


def _add_row(sentence: Sentence, line: str) -> None:
    columns = line.split("\t")
    if len(columns) != len(_COLUMNS):
        raise errors.DataError(f"{len(columns)} columns are given; {len(_COLUMNS)}, separated by tabs, are required")
    if "" in columns:
        raise errors.DataError(f"column {_COLUMNS[columns.index('')]} is empty; '_' is required where it is open")
    number, form, lemma, upos, xpos, feats, head, deprel, deps, misc = columns
    found = _ID.fullmatch(number)
    known = len(sentence)
    first, sign, second = (int(found[1]), found[2], int(found[3] or 0)) if found else (0, None, 0)
    if sign is None and first == known + 1:
        pairs = _features(feats)
        sentence.words.append(Word(first, form, lemma, upos, xpos, pairs, _head(head), deprel, deps, misc))
    elif sign == "-" and first == known + 1 <= second and first > _covered(sentence):
        sentence.multiword_tokens.append(MultiwordToken(first, second, form, misc))
    elif sign == "." and (first, second) == (known, _empty_nodes_after(sentence, known) + 1):
        pairs = _features(feats)
        sentence.empty_nodes.append(EmptyNode(first, second, form, lemma, upos, xpos, pairs, deps, misc))
    else:
        raise errors.DataError(f"ID {number} is given after {known} words; the next in order is required")


def _covered(sentence: Sentence) -> int:
    """The last word of the last multi-word token."""
    return sentence.multiword_tokens[-1].last if sentence.multiword_tokens else 0


def _empty_nodes_after(sentence: Sentence, word: int) -> int:
    return sum(node.after == word for node in sentence.empty_nodes)


def _features(text: str) -> dict[str, str]:
    """``Name=Value|Name=Value`` as a dict."""
    if text == "_":
        return {}
    features = {}
    for item in text.split("|"):
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            raise errors.DataError(f"FEATS {text} is given; Name=Value, separated by '|', is required")
        features[name] = value
    return features


def _head(text: str) -> int | None:
    if text == "_":
        return None
    if not (text.isascii() and text.isdigit()):
        raise errors.DataError(f"HEAD {text} is given; a number, or '_' where it is open, is required")
    return int(text)


def _fault(heads: list[int]) -> tuple[int, str] | None:
    """A word whose head is no word, or whose heads lead back to it, and what is wrong with it."""
    count = len(heads)
    for word, head in enumerate(heads, 1):
        if head > count:
            return word, f"HEAD {head} is given; one from 0 to {count} is required"
    walk_of = [0] * (count + 1)
    for start in range(1, count + 1):
        word = start
        while word and not walk_of[word]:
            walk_of[word] = start
            word = heads[word - 1]
        if word and walk_of[word] == start:
            return word, f"the heads of word {word} lead back to it; a tree is required"
    return None
