"""Minibatches of so many items, or of so many tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, TypeVar

from .. import errors

__all__ = ["minibatches", "token_batches"]

Item = TypeVar("Item")


def minibatches(
    items: Sequence[Item],
    size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    bucket_by: Callable[[Item], Any] | None = None,
) -> Iterator[list[Item]]:
    """One pass over all items in lists of ``size``, the last one shorter where they do not divide.

    Args:
        items: What to deal out.
        size: At least 1.
        shuffle: Whether the order is random.
        seed: Of the order; give another every epoch.
        bucket_by: Put items of similar key together, and shuffle the minibatches.
    """
    if size < 1:
        raise errors.NodeValueError(f"minibatches: size {size} is given; at least 1 is required")
    rng = random.Random(seed)
    order = list(range(len(items)))
    if shuffle:
        rng.shuffle(order)
    if bucket_by is not None:
        order.sort(key=lambda number: bucket_by(items[number]))
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    if shuffle and bucket_by is not None:
        rng.shuffle(groups)
    for group in groups:
        yield [items[number] for number in group]


def token_batches(
    items: Sequence[Item],
    tokens: int,
    *,
    length: Callable[[Item], int],
    shuffle: bool = True,
    seed: int = 0,
    bucket: bool = True,
    max_items: int | None = None,
) -> Iterator[list[Item]]:
    """One pass over all items in lists of at most ``tokens`` tokens together.

    Nothing is padded, so the tokens are those of the items and no more. An item that alone has more than ``tokens`` makes
    a minibatch of its own.

    Args:
        items: What to deal out.
        tokens: At least 1.
        length: The tokens of an item; for a pair of sentences, say, those of both.
        shuffle: Whether the order is random.
        seed: Of the order; give another every epoch.
        bucket: Put items of similar length together, and shuffle the minibatches.
        max_items: How many items a minibatch holds at most.

    Example:
        >>> from lazynet.data import token_batches
        >>> sentences = ["a", "a b c d e", "a b", "a b c"]
        >>> list(token_batches(sentences, 4, length=lambda sentence: len(sentence.split()), shuffle=False))
        [['a', 'a b'], ['a b c'], ['a b c d e']]
    """
    if tokens < 1 or (max_items is not None and max_items < 1):
        raise errors.NodeValueError(
            f"token_batches: tokens {tokens} and max_items {max_items} are given; at least 1 is required of both"
        )
    lengths = [_length(length, item) for item in items]
    rng = random.Random(seed)
    order = list(range(len(items)))
    if shuffle:
        rng.shuffle(order)
    if bucket:
        order.sort(key=lengths.__getitem__)
    groups: list[list[int]] = []
    filled = 0
    for number in order:
        filled += lengths[number]
        if not groups or filled > tokens or len(groups[-1]) == max_items:
            groups.append([])
            filled = lengths[number]
        groups[-1].append(number)
    if shuffle and bucket:
        rng.shuffle(groups)
    for group in groups:
        yield [items[number] for number in group]


def _length(length: Callable[[Item], int], item: Item) -> int:
    given = length(item)
    try:
        tokens = index(given)
    except TypeError:
        raise errors.NodeTypeError(f"token_batches: length {given!r} is given; an integer is required") from None
    if tokens < 0:
        raise errors.NodeValueError(f"token_batches: length {tokens} is given; at least 0 is required")
    return tokens
