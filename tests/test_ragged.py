"""Ragged operators beyond the table: what forward makes early, dropout inside attention, ids that the graph computes."""

import math

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors


class Vocabulary:
    """Rows of several sentences against a vocabulary, with the fused loss or with linear and cross-entropy."""

    def __init__(self, fused, tied=False, dtype="float64"):
        rng = np.random.default_rng(0)
        self.fused, self.dtype = fused, dtype
        self.sentences = [rng.normal(size=(n, 4)) for n in (3, 0, 1, 70)]
        self.weight = ln.Parameter(rng.normal(size=(9, 4)), dtype=dtype)
        self.bias = ln.Parameter(rng.normal(size=(1, 9)), dtype=dtype)
        self.scale = ln.Parameter(rng.normal(size=(1, 4)), dtype=dtype)

    def losses(self, graph):
        for rows in self.sentences:
            x = graph.input(rows) * self.scale
            targets = [(i * 5) % 9 for i in range(len(rows))]
            if self.fused:
                yield ln.linear_cross_entropy(x, self.weight, targets, self.bias, transpose=True, reduction="none")
            else:
                yield ln.cross_entropy(ln.linear(x, self.weight, self.bias, transpose=True), targets, reduction="none")

    def gradients(self, loss_of):
        graph = ln.Graph(dtype=self.dtype)
        graph.backward(loss_of(list(self.losses(graph))))
        result = []
        for p in (self.weight, self.bias, self.scale):
            result.append(None if p.grad is None else np.array(p.grad))
            p.zero_grad()
        return result


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda losses: ln.sum([ln.sum(each) for each in losses]),
        lambda losses: ln.sum([ln.sum(each) * (k + 0.5) for k, each in enumerate(losses)]),
        lambda losses: ln.sum(losses[3]),
        lambda losses: ln.sum(losses[3][2:5]) + ln.sum(losses[0]) * 2,
        lambda losses: ln.mean(ln.square(losses[3])),
    ],
    ids=["equal weights", "a weight a sentence", "one sentence", "some rows", "a weight a row"],
)
@pytest.mark.parametrize("frozen", [None, "weight", "bias", "scale"])
def test_early_gradients_are_those_of_the_separate_operators(loss_of, frozen):
    both = []
    for fused in (True, False):
        model = Vocabulary(fused)
        if frozen:
            getattr(model, frozen).trainable = False
        both.append(model.gradients(loss_of))
    for a, b in zip(*both, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_two_backwards_of_one_forward():
    model = Vocabulary(True)
    graph = ln.Graph(dtype="float64")
    losses = list(model.losses(graph))
    first, second = ln.sum(losses[0]), ln.sum(losses[3])
    graph.forward(first, second)
    graph.backward(first)
    graph.backward(second)
    expected = Vocabulary(False).gradients(lambda losses: ln.sum(losses[0]) + ln.sum(losses[3]))
    np.testing.assert_allclose(model.weight.grad, expected[0], rtol=1e-10)


def test_logits_of_all_rows_never_exist():
    rows, classes, dim = 600, 20000, 8
    weight = ln.Parameter((classes, dim), ln.init.normal())
    graph = ln.Graph()
    x = graph.input(np.ones((rows, dim)), requires_grad=True)
    graph.backward(ln.linear_cross_entropy(x, weight, [3] * rows, transpose=True))
    assert graph.statistics()["pool"]["peak_bytes_in_use"] < rows * classes * 4 / 2


def test_tied_embeddings():
    table = ln.Parameter(np.random.default_rng(0).normal(size=(7, 3)), dtype="float64")

    def loss(graph):
        x = ln.tanh(ln.lookup(graph, table, [1, 2, 4]))
        return ln.linear_cross_entropy(x, table, [2, 4, 0], transpose=True)

    ln.check_gradients(loss, [table])
    with pytest.raises(errors.NodeTypeError, match="sparse=False"):
        ln.linear_cross_entropy(ln.Graph().input([[1.0] * 3]), ln.Parameter((7, 3), sparse=True), [0], transpose=True)


def test_wrong_targets_name_the_row():
    graph = ln.Graph()
    with pytest.raises(errors.NodeIndexError, match="target 9 of row 1"):
        ln.linear_cross_entropy(graph.input(np.ones((2, 3))), ln.Parameter((3, 9)), [0, 9])
    with pytest.raises(errors.ShapeError, match="one a row"):
        ln.linear_cross_entropy(graph.input(np.ones((2, 3))), ln.Parameter((3, 9)), [0])


def attention_values(policy, rate, lengths=(3, 1, 40), seed=3):
    rng = np.random.default_rng(1)
    graph = ln.Graph(policy=policy, seed=seed)
    inputs = [graph.input(rng.normal(size=(n, 4)), requires_grad=True) for n in lengths]
    results = [ln.attention(x, x, x, 2, dropout=rate) for x in inputs]
    graph.backward(ln.sum([ln.sum(ln.square(y)) for y in results]))
    return [y.value for y in results], [x.grad for x in inputs]


def test_attention_dropout_does_not_depend_on_batching():
    for together, alone in zip(attention_values("lookahead", 0.5), attention_values("none", 0.5), strict=True):
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not np.allclose(attention_values("lookahead", 0.5)[0][2], attention_values("lookahead", 0.0)[0][2])


def test_attention_dropout_keeps_the_mean_and_its_gradient_is_the_slope():
    x = np.random.default_rng(0).normal(size=(60, 2))
    graph = ln.Graph(dtype="float64")
    nodes = [ln.attention(*[graph.input(x)] * 3, dropout=0.3) for _ in range(400)]
    graph.forward(*nodes)
    plain = ln.attention(*[graph.input(x)] * 3).value
    np.testing.assert_allclose(np.mean([node.value for node in nodes], 0), plain, atol=0.05)

    def value(shift):
        graph = ln.Graph(dtype="float64", seed=5)
        moved = graph.input(x + shift, requires_grad=True)
        loss = ln.sum(ln.square(ln.attention(moved, moved * 0.5, moved, dropout=0.3)))
        return loss, moved

    direction = np.random.default_rng(1).normal(size=x.shape)
    loss, moved = value(0)
    loss.graph.backward(loss)
    slope = (value(1e-6 * direction)[0].item() - value(-1e-6 * direction)[0].item()) / 2e-6
    assert (moved.grad * direction).sum() == pytest.approx(slope, rel=1e-6)


def test_hidden_keys_get_nothing():
    graph = ln.Graph()
    q, v = graph.input(np.zeros((3, 1)), True), graph.input([[1.0], [2.0], [6.0]], True)
    hide = graph.input([[0.0, 0, 0], [0, 0, -math.inf], [-math.inf] * 3])
    y = ln.attention(q, q, v, bias=hide)
    graph.backward(ln.sum(y))
    np.testing.assert_allclose(y.value, [[3.0], [1.5], [0.0]], rtol=1e-6)
    assert np.isfinite(q.grad).all() and np.isfinite(v.grad).all()
    np.testing.assert_allclose(v.grad, [[5 / 6], [5 / 6], [1 / 3]], rtol=1e-6)


def test_a_boolean_mask_hides():
    rng = np.random.default_rng(0)
    x, keep = rng.normal(size=(3, 4)), np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]], bool)
    graph = ln.Graph(dtype="float64")
    q = graph.input(x)
    hidden = graph.input(np.where(keep, 0.0, -math.inf))
    masked = ln.attention(q, q, q, 2, mask=keep).value
    np.testing.assert_array_equal(masked, ln.attention(q, q, q, 2, bias=hidden).value)
    assert not masked[1].any()
    each = graph.input(rng.normal(size=(6, 3)))
    both = ln.attention(q, q, q, 2, bias=each, mask=keep).value
    np.testing.assert_array_equal(both, ln.attention(q, q, q, 2, bias=each + np.tile(hidden.value, (2, 1))).value)
    with pytest.raises(errors.NodeTypeError, match="booleans are required"):
        ln.attention(q, q, q, mask=keep.astype(int))
    with pytest.raises(errors.ShapeError, match="fits"):
        ln.attention(q, q, q, mask=keep[:2])


def test_a_cached_prefix_gives_the_rows_of_the_whole():
    x = np.random.default_rng(0).normal(size=(9, 4))
    graph = ln.Graph(train=False)
    whole = ln.attention(*[graph.input(x)] * 3, 2, causal=True)
    rest = ln.attention(graph.input(x[6:]), graph.input(x), graph.input(x), 2, causal=True)
    np.testing.assert_allclose(rest.value, whole.value[6:], rtol=1e-6)


def test_ids_out_of_range_raise_when_they_are_computed():
    table = ln.Parameter(np.ones((4, 2)))
    for wrong in (4.0, -1.0, 1.5, math.nan):
        graph = ln.Graph()
        node = ln.lookup_node(table, graph.input([[0.0], [wrong]]) * 1.0)
        with pytest.raises(errors.NodeIndexError, match="less than 4 are required"):
            graph.forward(node)
        with pytest.raises(errors.NodeIndexError, match="take_cols"):
            ln.take_cols(graph.input([[1.0, 2.0, 3.0, 4.0]]), graph.input([[wrong]])).item()
        with graph:
            assert ln.lookup_node(table, graph.input([[3.0]])).shape == (1, 2)


def test_top_k_of_equals_and_nan():
    graph = ln.Graph()
    values, ids = ln.top_k(graph.input([[1.0, 3.0, 3.0, 2.0], [math.nan, 1.0, 5.0, math.nan]]), 3)
    assert ids.value.tolist() == [[1, 2, 3], [2, 1, 0]]
    assert values.value[0].tolist() == [3, 3, 2]
    with pytest.raises(errors.ShapeError, match="1 to 4 are possible"):
        ln.top_k(graph.input([[1.0, 3.0, 3.0, 2.0]]), 5)


@pytest.mark.parametrize("k", [1, 7, 600])
def test_top_k_of_long_rows(k):
    rng = np.random.default_rng(k)
    x = rng.integers(0, 400, (5, 1200)).astype(float)
    x[rng.random(x.shape) < 0.1] = math.nan
    _, ids = ln.top_k(ln.Graph(dtype="float64").input(x), k)
    for row, found in zip(x, ids.value.astype(int), strict=True):
        expected = np.argsort(-np.nan_to_num(row, nan=-1.0), kind="stable")[:k]
        np.testing.assert_array_equal(found, expected)


def test_sparse_table_by_computed_ids():
    table = ln.Parameter(np.arange(8.0).reshape(4, 2), sparse=True)
    graph = ln.Graph()
    best = ln.argmax(graph.input([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], requires_grad=True))
    graph.backward(ln.sum(ln.lookup_node(table, best)))
    assert table.grad.indices.tolist() == [1, 2]


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda x: ln.attention(x, x, x, 3), "divides 4 cols"),
        (lambda x: ln.attention(x, x[:, :2], x), "same cols"),
        (lambda x: ln.attention(x, x, x[:1]), "same rows"),
        (lambda x: ln.attention(x, x, x, window=-1), "at least 0"),
        (lambda x: ln.attention(x, x, x, bias=x), r"bias must have shape \(2, 2\)"),
        (lambda x: ln.attention(x, x, x, dropout=1.0), "less than 1"),
        (lambda x: ln.rotary(x, 4), "even number"),
        (lambda x: ln.unfold(x, 0), "at least 1"),
        (lambda x: ln.take_rows(x, [0, 2]), "row 2"),
        (lambda x: ln.softmax(x, 0, causal=True), "axis 1"),
        (lambda x: ln.crf_log_partition(x, x, x, x), "transitions must have shape"),
    ],
)
def test_mistakes(build, message):
    with pytest.raises(errors.LazyNetError, match=message):
        build(ln.Graph().input(np.ones((2, 4))))


def test_the_same_part_of_a_parameter_is_one_weight():
    weight = ln.Parameter(np.arange(12.0).reshape(6, 2), dtype="float64")
    graph = ln.Graph(dtype="float64")
    results = [ln.linear(graph.input(np.ones((n, 2))), graph.parameter(weight)[2:4], transpose=True) for n in (1, 3)]
    graph.backward(ln.sum([ln.sum(y) for y in results]))
    assert graph.profile()["linear"]["forward_kernels"] == 1
    np.testing.assert_array_equal(weight.grad, [[0, 0]] * 2 + [[4, 4]] * 2 + [[0, 0]] * 2)


def test_a_transformer_encoder_takes_as_many_kernels_for_64_sentences_as_for_one():
    layer = ln.nn.TransformerEncoderLayer(8, 2, 16)
    encoder, embed = ln.nn.TransformerEncoder(layer, 3, ln.nn.LayerNorm(8)), ln.nn.Embedding(5, 8)
    positions = ln.nn.SinusoidalPositions()

    def kernels(lengths):
        graph = ln.Graph()
        results = [encoder(positions(embed(graph, [1] * n))) for n in lengths]
        graph.backward(ln.sum([ln.sum(y) for y in results]))
        counts = graph.statistics()
        return counts["kernels_forward"], counts["kernels_backward"]

    assert kernels([i % 40 for i in range(64)]) == kernels([12])
