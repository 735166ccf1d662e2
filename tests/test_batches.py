"""Minibatches by number and by tokens."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazynet import errors
from lazynet.data import minibatches, read_tagged, token_batches

from .corpora import corpus

options = st.fixed_dictionaries({"shuffle": st.booleans(), "bucket": st.booleans(), "seed": st.integers(0, 99)})


@given(st.lists(st.integers(0, 12)), st.integers(1, 20), st.none() | st.integers(1, 4), options)
def test_token_batches(lengths, tokens, max_items, options):
    items = list(enumerate(lengths))
    batches = list(token_batches(items, tokens, length=lambda item: item[1], max_items=max_items, **options))
    assert sorted(item for batch in batches for item in batch) == items
    for batch in batches:
        assert batch and (sum(length for _, length in batch) <= tokens or len(batch) == 1)
        assert max_items is None or len(batch) <= max_items
    again = token_batches(items, tokens, length=lambda item: item[1], max_items=max_items, **options)
    assert list(again) == batches


@given(st.lists(st.integers(0, 12), min_size=1), st.integers(1, 20), options)
def test_a_minibatch_ends_only_where_it_is_full(lengths, tokens, options):
    batches = list(token_batches(lengths, tokens, length=int, **{**options, "shuffle": False}))
    for batch, following in pairwise(batches):
        assert sum(batch) + following[0] > tokens
    flat = [length for batch in batches for length in batch]
    assert flat == (sorted(lengths) if options["bucket"] else lengths)


@pytest.mark.parametrize("bucket", [False, True])
def test_epochs_differ_by_seed(bucket):
    items = [(number, 1 + number % 5) for number in range(200)]
    epochs = [list(token_batches(items, 20, length=lambda item: item[1], bucket=bucket, seed=seed)) for seed in (0, 1)]
    assert epochs[0] != epochs[1]
    assert set(map(tuple, epochs[0])).isdisjoint(map(tuple, epochs[1]))
    if bucket:
        means = [np.mean([length for _, length in batch]) for batch in epochs[0]]
        assert means != sorted(means)  # the minibatches are shuffled
        assert np.mean([len({length for _, length in batch}) for batch in epochs[0]]) < 1.3


def test_lengths_may_be_of_numpy():
    assert list(token_batches([1, 2], 3, length=lambda item: np.int32(item), shuffle=False)) == [[1, 2]]
    assert list(token_batches([], 3, length=len)) == []


@pytest.mark.parametrize(
    "deal, error, message",
    [
        (lambda: token_batches([1], 0, length=int), errors.NodeValueError, "tokens 0"),
        (lambda: token_batches([1], 5, length=int, max_items=0), errors.NodeValueError, "max_items 0"),
        (lambda: token_batches([-1], 5, length=int), errors.NodeValueError, "length -1"),
        (lambda: token_batches([1], 5, length=float), errors.NodeTypeError, "length 1.0 .*an integer is required"),
        (lambda: minibatches([1], 0), errors.NodeValueError, "size 0"),
        (lambda: minibatches([1], -1), errors.NodeValueError, "size -1"),
    ],
)
def test_mistakes(deal, error, message):
    with pytest.raises(error, match=message):
        list(deal())


def test_corpus():
    sentences = [words for words, _ in read_tagged(corpus("ner") / "train.txt")]
    batches = list(token_batches(sentences, 1000, length=len))
    assert sum(map(len, batches)) == len(sentences)
    assert sorted(map(tuple, sum(batches, []))) == sorted(map(tuple, sentences))
    filled = [sum(map(len, batch)) for batch in batches]
    assert max(filled) <= 1000 and np.median(filled) > 900
