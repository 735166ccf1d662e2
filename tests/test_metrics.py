"""Metrics: spans as conlleval reads them, values of several minibatches, of nothing and of NaN."""

import math

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors
from lazynet.metrics import Accuracy, Perplexity, SpanF1, spans

# What conlleval and seqeval (by default) make of them.
SPANS = [
    ("", []),
    ("O O", []),
    ("B-A I-A O B-A", [("A", 0, 2), ("A", 3, 4)]),
    ("B-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),
    ("I-A I-A O I-B", [("A", 0, 2), ("B", 3, 4)]),  # I without B
    ("I-A B-A I-A I-B", [("A", 0, 1), ("A", 1, 3), ("B", 3, 4)]),  # IOB1: B only between spans of one type
    ("B-A I-B I-B", [("A", 0, 1), ("B", 1, 3)]),
    ("S-A B-A E-A B-A I-A E-A", [("A", 0, 1), ("A", 1, 3), ("A", 3, 6)]),
    ("B-A E-A I-A E-A E-A", [("A", 0, 2), ("A", 2, 4), ("A", 4, 5)]),
    ("S-A I-A S-B", [("A", 0, 1), ("A", 1, 2), ("B", 2, 3)]),
    ("B-A E-B", [("A", 0, 1), ("B", 1, 2)]),
    ("B-A O E-A", [("A", 0, 1), ("A", 2, 3)]),
    ("B-geo-loc I-geo-loc B-geo", [("geo-loc", 0, 2), ("geo", 2, 3)]),
    ("B I O I", [("", 0, 2), ("", 3, 4)]),
]


@pytest.mark.parametrize(("tags", "expected"), SPANS)
def test_spans(tags, expected):
    assert [tuple(span) for span in spans(tags.split())] == expected


def test_span_f1_counts_exact_spans_over_minibatches():
    f1 = SpanF1()
    f1.update(
        [["B-PER", "I-PER", "O", "B-LOC", "O"], ["B-MISC", "O"]],
        [["B-PER", "I-PER", "O", "B-LOC", "I-LOC"], ["O", "O"]],
    )
    f1.update([["I-PER", "B-ORG"]], [["B-PER", "B-LOC"]])
    # Right: both PER. Predicted: PER LOC MISC PER ORG. Expected: PER LOC PER LOC.
    assert f1.overall == pytest.approx((2 / 5, 2 / 4, 4 / 9, 4))
    assert f1.value == pytest.approx(4 / 9)
    assert {kind: tuple(score) for kind, score in f1.by_type.items()} == {
        "LOC": (0, 0, 0, 2),
        "MISC": (0, 0, 0, 0),
        "ORG": (0, 0, 0, 0),
        "PER": (1, 1, 1, 2),
    }
    f1.reset()
    assert f1.value == 0 and f1.by_type == {}


def test_span_f1_mistakes():
    f1 = SpanF1()
    for predicted, expected, error in (
        (["B-A", "O"], ["B-A", "O"], errors.NodeTypeError),
        ("O", "O", errors.NodeTypeError),
        ([[1, 2]], [[1, 2]], errors.NodeTypeError),
        ([["O"]], [["O", "O"]], errors.ShapeError),
        ([["O"]], [["O"], ["O"]], errors.ShapeError),
        ([["B-A"]], [["X-A"]], errors.NodeValueError),
        ([["O-A"]], [["O"]], errors.NodeValueError),
    ):
        with pytest.raises(error, match="required"):
            f1.update(predicted, expected)
    assert f1.by_type == {}


def test_mean():
    mean = ln.metrics.Mean()
    assert math.isnan(mean.value)
    mean.update(np.float32(3.0), count=3)
    mean.update(7)
    mean.update(math.nan, count=0)
    assert mean.value == 4 and mean.count == 4
    mean.update(math.nan)
    assert math.isnan(mean.value)
    mean.reset()
    mean.update(ln.Graph().input([[1.5]]))
    assert mean.value == 1.5
    with pytest.raises(errors.NodeValueError, match="count=-1"):
        mean.update(1.0, count=-1)


def test_perplexity_weighs_tokens():
    perplexity = Perplexity()
    assert math.isnan(perplexity.value)
    perplexity.update(math.log(2) * 3, tokens=3)
    perplexity.update(math.log(32), tokens=1)
    assert perplexity.value == pytest.approx(4)
    perplexity.update(1e6, tokens=1)
    assert perplexity.value == math.inf
    perplexity.reset()
    perplexity.update(0.0, 0)
    assert math.isnan(perplexity.value)
    with pytest.raises(errors.NodeValueError, match="tokens=-1"):
        perplexity.update(1.0, -1)


def test_accuracy():
    accuracy = Accuracy()
    assert math.isnan(accuracy.value)
    accuracy.update([], [])
    assert math.isnan(accuracy.value)
    accuracy.update([1, 2, 0], np.array([1, 0, -100]))
    assert (accuracy.right, accuracy.count) == (1, 2)
    accuracy.update(3, 3)
    scores = ln.Graph().input([[0.1, 0.7, 0.2]])
    accuracy.update(scores.value, 1)
    assert (accuracy.right, accuracy.count) == (3, 4)
    accuracy.update([[math.nan, 0.0], [0.0, 1.0]], [0, 1])
    assert (accuracy.right, accuracy.count) == (4, 6)
    accuracy.reset()
    accuracy.update(["A", "longer"], ["A", "B"])
    assert accuracy.value == 0.5


def test_accuracy_mistakes():
    accuracy = Accuracy()
    for predicted, expected, error in (
        ([1, 2], [1], errors.ShapeError),
        ([0.1, 0.9], 1, errors.ShapeError),
        ([0.1, 0.9], [0, 1], errors.NodeTypeError),
        (["A"], [1], errors.NodeTypeError),
        ([1], ["A"], errors.NodeTypeError),
        ([1], [1.0], errors.NodeTypeError),
    ):
        with pytest.raises(error, match="required"):
            accuracy.update(predicted, expected)
    assert accuracy.count == 0


def test_accuracy_of_ids_that_the_graph_computes():
    graph, accuracy = ln.Graph(), ln.metrics.Accuracy()
    accuracy.update(ln.argmax(graph.input(np.eye(3))).value, [0, 1, 2])
    accuracy.update(np.array([[1.0], [2.0]]), np.array([[1], [0]]))
    assert accuracy.value == 0.8
    with pytest.raises(errors.NodeTypeError):
        accuracy.update(np.array([[0.5], [0.2]]), [0, 1])
