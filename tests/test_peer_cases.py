"""Cases with known right values that other dynamic-graph toolkits got wrong."""

import math
import threading

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors


def test_constants_of_different_value():
    graph = ln.Graph()
    x = graph.input([0.0, 0.0])
    values = [x + c for c in (1.1, 1.2, 1.3)]
    graph.forward()
    for value, c in zip(values, (1.1, 1.2, 1.3), strict=True):
        np.testing.assert_array_equal(value.value, np.float32([[c, c]]))


@pytest.mark.parametrize("sparse", [False, True])
def test_two_tables_of_one_width(sparse):
    a = ln.Parameter(np.arange(20.0).reshape(5, 4), sparse=sparse, name="A")
    b = ln.Parameter(100 + np.arange(12.0).reshape(3, 4), sparse=sparse, name="B")
    graph = ln.Graph()
    rows = [ln.lookup(graph, t, i) for t, i in ((a, 4), (b, 2), (a, 0), (b, 1))]
    graph.backward(ln.sum([ln.sum(row) for row in rows]))
    for row, (table, i) in zip(rows, ((a, 4), (b, 2), (a, 0), (b, 1)), strict=True):
        np.testing.assert_array_equal(row.value, table.value[[i]])
    for table, touched in ((a, [0, 4]), (b, [1, 2])):
        gradient = table.grad.to_dense(table.shape[0]) if sparse else table.grad
        expected = np.zeros(table.shape)
        expected[touched] = 1
        np.testing.assert_array_equal(gradient, expected)
        if sparse:
            assert table.grad.indices.tolist() == touched
    with pytest.raises(errors.NodeIndexError, match=r"id 3 .*3 rows.*'B'"):
        ln.lookup(graph, b, 3)


def test_batched_sum_feeding_a_batched_product():
    p = [ln.Parameter(i * np.eye(2)) for i in range(3)]
    q = ln.Parameter([[0.0, 1.0], [1.0, 0.0]])
    graph = ln.Graph()
    w = [graph.parameter(each) + q for each in p]
    products = [w[1] @ graph.input([[j], [1.0]]) for j in range(4)]
    products += [w[0] @ graph.input([[0.0], [1.0]]), w[2] @ graph.input([[3.0], [1.0]])]
    loss = ln.sum([ln.sum(each) for each in products])
    graph.backward(loss)
    assert loss.item() == 33
    for each, expected in zip(p, ([[0, 1], [0, 1]], [[6, 4], [6, 4]], [[3, 1], [3, 1]]), strict=True):
        np.testing.assert_array_equal(each.grad, expected)
    np.testing.assert_array_equal(q.grad, [[9, 6], [9, 6]])


def test_sparsemax():
    graph = ln.Graph(dtype="float64")
    inputs = [graph.input(v, requires_grad=True) for v in ([2.0, 0.0], [0.2, 0.0], [0.0, 3.0])]
    results = [ln.sparsemax(x) for x in inputs]
    graph.backward(ln.sum([r[0, 0] for r in results]))
    for result, expected in zip(results, ([1, 0], [0.6, 0.4], [0, 1]), strict=True):
        np.testing.assert_allclose(result.value[0], expected, atol=1e-12)
    for x, expected in zip(inputs, ([0, 0], [0.5, -0.5], [0, 0]), strict=True):
        np.testing.assert_allclose(x.grad[0], expected, atol=1e-12)


def test_cross_entropy_of_several_sizes():
    graph = ln.Graph(dtype="float64")
    inputs = [graph.input(np.zeros(n), requires_grad=True) for n in (2, 3, 5)]
    losses = [ln.cross_entropy(x, 0) for x in inputs]
    total = ln.sum(losses)
    graph.backward(total)
    np.testing.assert_allclose([loss.item() for loss in losses], np.log([2, 3, 5]))
    assert round(total.item(), 7) == 3.4011974
    for x in inputs:
        expected = np.full(x.cols, 1 / x.cols)
        expected[0] -= 1
        np.testing.assert_allclose(x.grad[0], expected, atol=1e-12)


def test_attention_with_masked_rows():
    graph = ln.Graph()
    first, second = (graph.input(np.zeros(3), requires_grad=True) for _ in range(2))
    a = ln.softmax(first, mask=[[True, True, False]])
    b = ln.softmax(second, mask=[[False, False, False]])
    weights = graph.input([1.0, 2.0, 3.0])
    graph.backward(ln.sum(a * weights) + ln.sum(b * weights))
    np.testing.assert_array_equal(a.value, [[0.5, 0.5, 0]])
    np.testing.assert_array_equal(b.value, [[0, 0, 0]])
    assert np.isfinite(first.grad).all() and np.isfinite(second.grad).all()


def test_lengths_0_3_2():
    graph = ln.Graph()
    sentences = [[], [1, 2, 3], [4, 5]]
    nodes = [graph.input(np.array(s, float).reshape(-1, 1), requires_grad=True) for s in sentences]
    sums = [ln.sum(node) for node in nodes]
    backwards = [ln.concat(list(node)[::-1], axis=0) if node.rows else node for node in nodes]
    graph.backward(ln.sum(sums))
    assert [s.item() for s in sums] == [0, 6, 9]
    assert [b.value.ravel().tolist() for b in backwards] == [[], [3, 2, 1], [5, 4]]
    assert [node.grad.ravel().tolist() for node in nodes] == [[], [1, 1, 1], [1, 1]]


def test_sequences_of_length_0():
    lstm = ln.nn.LSTM(3, 2, bidirectional=True)
    graph = ln.Graph()
    outputs, finals = lstm(graph.input(np.zeros((0, 3))))
    assert outputs.shape == (0, 4)
    assert [state.h.value.tolist() for state in finals] == [[[0, 0]], [[0, 0]]]


def test_unused_late_and_constant():
    used, unused, late = (ln.Parameter([[1.0, 2.0]], name=n) for n in ("used", "unused", "late"))
    optimizer = ln.optim.SGD([used, unused, late], lr=0.1)
    graph = ln.Graph()
    loss = ln.sum(graph.parameter(used) * 2.0)
    after = graph.parameter(late) * 3.0
    graph.backward(loss)
    np.testing.assert_array_equal(after.value, [[3, 6]])
    assert unused.grad is None and late.grad is None
    before = [p.value.tobytes() for p in (unused, late)]
    optimizer.step()
    assert [p.value.tobytes() for p in (unused, late)] == before
    with graph:
        graph.backward(ln.sum(graph.input([[1.0, 2.0]])))
    optimizer.step()
    assert [p.value.tobytes() for p in (unused, late)] == before


def test_loss_that_ignores_a_non_finite_branch():
    """An infinite value of the same batch that the loss does not read must not reach any gradient."""
    p = ln.Parameter([[0.0, 1.0]])
    graph = ln.Graph()
    bad, good = ln.log(graph.parameter(p)[:, 0:1]), ln.log(graph.parameter(p)[:, 1:2])
    graph.forward(bad, good)
    graph.backward(ln.sum(good))
    np.testing.assert_array_equal(p.grad, [[0, 1]])


def test_memory_is_flat_and_per_instance_state_is_kept():
    graph = ln.Graph()
    reserved = []
    for step in range(200):
        with graph:
            nodes = [graph.input(np.full((1 + i % 3, 4), i + step)) for i in range(20)]
            results = [ln.sum(ln.tanh(node * 0.01)) for node in nodes]
            graph.forward()
            for i, result in enumerate(results):
                expected = np.tanh((i + step) * 0.01) * 4 * (1 + i % 3)
                assert math.isclose(result.item(), expected, rel_tol=1e-5)
        reserved.append(graph.statistics()["pool"]["bytes_reserved"])
    assert reserved[10] == reserved[-1]


def test_several_graphs_in_several_threads():
    model = ln.nn.LSTM(4, 3)
    data = [np.random.default_rng(i).normal(size=(1 + i % 5, 4)) for i in range(16)]

    def serve(graph, item):
        with graph:
            outputs, _ = model(graph.input(item))
            return outputs.value

    expected = [serve(ln.Graph(train=False), item) for item in data]
    results = {}

    def work(worker):
        graph = ln.Graph(train=False)
        for _ in range(10):
            for number, item in enumerate(data):
                results[worker, number] = serve(graph, item)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 * len(data)
    for (_, number), value in results.items():
        np.testing.assert_allclose(value, expected[number], rtol=1e-5, atol=1e-6)


def test_a_user_can_check_batching():
    lstm = ln.nn.LSTM(4, 3, bidirectional=True, dtype="float64")
    data = [np.random.default_rng(i).normal(size=(i, 4)) for i in range(5)]

    def build(graph):
        return ln.sum([ln.sum(ln.square(lstm(graph.input(item))[0])) for item in data])

    ln.check_batching(build, lstm.parameters())
    ln.check_gradients(build, lstm.parameters())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_where_the_first_keys_are_hidden_and_the_others_score_low(dtype):
    """The largest score of the first 200 keys is minus infinity, that of the others lies where exp() is zero."""
    keys, rng = 300, np.random.default_rng(0)
    bias, v = np.full((1, keys), -np.inf), rng.normal(size=(keys, 3))
    bias[0, 200:] = -1000 + np.arange(100.0)
    graph = ln.Graph(dtype=dtype)
    zero, scores = graph.constant(0.0, keys, 4), graph.input(bias, requires_grad=True)
    y = ln.attention(zero[:1], zero, graph.input(v), bias=scores)
    p = np.exp(bias - bias.max())
    p /= p.sum()
    np.testing.assert_allclose(y.value, p @ v, rtol=1e-5, atol=1e-6)
    graph.backward(ln.sum(y))
    np.testing.assert_allclose(scores.grad, p * (v.sum(1) - (p @ v).sum()), rtol=1e-4, atol=1e-6)
