"""Random graphs: every policy, lazy and eager, training and inference, whole and step by step, equal one at a time."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lazynet as ln

DIM, WORDS = 5, 9
POLICIES = ["depth", "agenda", "lookahead", ln.batching.Agenda(), ln.batching.Lookahead()]


class Model(ln.Module):
    def __init__(self):
        ln.seed(0)
        self.table = ln.Parameter((WORDS, DIM), ln.init.normal(), dtype="float64", sparse=True)
        self.weight = ln.Parameter((DIM, 2 * DIM), ln.init.normal(0, 0.4), dtype="float64")
        self.square = ln.Parameter((DIM, DIM), ln.init.normal(0, 0.4), dtype="float64")
        self.bias = ln.Parameter((DIM,), ln.init.normal(), dtype="float64")
        self.scale = ln.Parameter((DIM,), ln.init.normal(1, 0.1), dtype="float64")


MODEL = Model()


def build(graph, seed, size, forward_now):
    """A random graph of nodes of DIM columns and one to four rows; returns losses and some nodes."""
    rng = random.Random(seed)
    m = MODEL
    nodes = [ln.lookup(graph, m.table, [rng.randrange(WORDS) for _ in range(rng.randint(1, 4))]) for _ in range(6)]
    nodes.append(graph.input(np.linspace(-1, 1, DIM), requires_grad=True))

    def same_rows(x):
        return rng.choice([n for n in nodes if n.rows == x.rows])

    operations = [
        lambda x: x + same_rows(x),
        lambda x: x * same_rows(x),
        lambda x: x - m.bias,
        lambda x: ln.tanh(x),
        lambda x: ln.sigmoid(x),
        lambda x: ln.relu(x) + 0.1,
        lambda x: x * rng.choice([0.5, 0.7]),
        lambda x: ln.linear(ln.concat([x, same_rows(x)]), m.weight, m.bias, transpose=True),
        lambda x: x @ m.square,
        lambda x: ln.concat([x, same_rows(x)])[:, 2 : 2 + DIM],
        lambda x: ln.split(ln.concat([x, x]), 2)[1],
        lambda x: ln.softmax(x),
        lambda x: ln.layer_norm(x, m.scale, m.bias),
        lambda x: ln.dropout(x, 0.25, training=True),
        lambda x: ln.average([x, same_rows(x), same_rows(x)]),
        lambda x: ln.softmax(x @ x.T) @ x,
        lambda x: ln.concat([x, rng.choice(nodes)], axis=0)[: rng.randint(1, 4)],
        lambda x: ln.mean(x, 0),
        lambda x: ln.minimum(x, same_rows(x)),
        lambda x: ln.stop_gradient(x) * x,
        lambda x: ln.reshape(ln.reshape(x, -1, 1), -1, DIM),
        lambda x: x / (1.5 + ln.square(same_rows(x))),
        lambda x: x + ln.logsumexp(same_rows(x)),
        lambda x: ln.attention(x, x, same_rows(x), 5, causal=True, window=2, dropout=0.2, training=True),
        lambda x: ln.attention(x, y := rng.choice(nodes), y),
        lambda x: ln.softmax(x, window=(1, 2)),
        lambda x: ln.rms_norm(x, m.scale),
        lambda x: ln.rotary(x[:, :4], 2, start=rng.randint(0, 3)) @ graph.parameter(m.square)[:4],
        lambda x: ln.take_rows(x, [rng.randrange(x.rows) for _ in range(rng.randint(1, 3))]) if x.rows else x,
        lambda x: ln.linear(ln.unfold(x, 2, padding=1), m.weight, transpose=True),
        lambda x: x + ln.crf_log_partition(x, m.square, m.bias, m.scale) * 0.1,
        lambda x: (
            x + ln.linear_cross_entropy(x, m.square, [rng.randrange(DIM) for _ in range(x.rows)], reduction="none")
        ),
        lambda x: x + ln.lookup_node(m.table, ln.argmax(x)),
        lambda x: x * ln.top_k(x, 2)[0][:, 1:],
    ]
    for index in range(size):
        x = rng.choice(nodes[-12:]) if rng.random() < 0.7 else rng.choice(nodes)
        nodes.append(rng.choice(operations)(x))
        if forward_now and index % 17 == 5:
            graph.forward(nodes[-1])
    losses = [
        ln.cross_entropy(n, [rng.randrange(DIM) for _ in range(n.rows)], reduction="sum") for n in rng.sample(nodes, 6)
    ]
    return ln.sum(losses), nodes


def gradients():
    found = []
    for parameter in MODEL.parameters():
        gradient = parameter.grad
        if isinstance(gradient, ln.SparseRows):
            gradient = gradient.to_dense(WORDS)
        found.append(np.zeros(parameter.shape) if gradient is None else gradient.copy())
        parameter.zero_grad()
    return found


def run(seed, size, policy, train=True, eager=False, forward_now=False):
    graph = ln.Graph(dtype="float64", policy=policy, train=train, eager=eager, seed=5)
    loss, nodes = build(graph, seed, size, forward_now)
    if not eager:
        plan = graph.plan()
        if not isinstance(policy, ln.batching.Policy):
            plan.verify()
    if train:
        graph.backward(loss)
        sharing = gradients()
        graph.backward(loss, retain_grad=True)
        values, kept = [node.value for node in nodes], gradients()
        for a, b in zip(sharing, kept, strict=True):
            np.testing.assert_array_equal(a, b)
        return loss.item(), values, kept, [node.grad for node in nodes]
    return loss.item(), [node.value for node in nodes], None, None


def assert_equal(result, expected):
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-9)
    for a, b in zip(result[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    if result[2] is None:
        return
    for a, b in zip(result[2], expected[2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)
    for a, b in zip(result[3], expected[3], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), size=st.integers(1, 250))
def test_every_way_equals_one_at_a_time(seed, size):
    expected = run(seed, size, "none")
    for policy in POLICIES:
        assert_equal(run(seed, size, policy), expected)
        assert_equal(run(seed, size, policy, train=False), expected)
        assert_equal(run(seed, size, policy, forward_now=True), expected)
        assert_equal(run(seed, size, policy, train=False, forward_now=True), expected)
    assert_equal(run(seed, size, "lookahead", eager=True), expected)
    assert_equal(run(seed, size, "lookahead", eager=True, train=False), expected)


@pytest.mark.parametrize("seed", range(10))
def test_python_policies_are_the_specification_of_the_core(seed):
    def batches(policy):
        graph = ln.Graph(dtype="float64", policy=policy)
        build(graph, seed, 150, False)
        graph.forward()
        return [(batch.signature, batch.members) for batch in graph.plan().batches]

    assert batches("agenda") == batches(ln.batching.Agenda())
    assert batches("lookahead") == batches(ln.batching.Lookahead())


def test_same_input_same_bits():
    def bits():
        loss, _, found, _ = run(3, 200, "lookahead")
        return loss, [g.tobytes() for g in found]

    assert bits() == bits()


def test_the_schedule_of_a_repeated_structure_is_reused():
    graph = ln.Graph(dtype="float64")
    for _ in range(4):
        with graph:
            graph.set_seed(5)
            loss, _ = build(graph, 11, 60, False)
            graph.forward(loss)
    assert graph.statistics()["schedule_cache_hits"] == 2
    expected = run(11, 60, "none")
    np.testing.assert_allclose(loss.item(), expected[0], rtol=1e-9)
