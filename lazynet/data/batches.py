"""Minibatches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

__all__ = ["minibatches"]

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
    rng = random.Random(seed)
    order = list(range(len(items)))
    if shuffle:
        rng.shuffle(order)
    if bucket_by is not None:
        order.sort(key=lambda index: bucket_by(items[index]))
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    if shuffle and bucket_by is not None:
        rng.shuffle(groups)
    for group in groups:
        yield [items[index] for index in group]
