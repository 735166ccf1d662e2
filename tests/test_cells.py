"""Cells: one node a call, equal to the nodes that they are made of, in values and all gradients."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lazynet as ln
from lazynet import errors

DIM = 6


@pytest.fixture(autouse=True)
def cells_on():
    before = ln.set_cells(True)
    yield
    ln.set_cells(before)


@pytest.fixture
def plain():
    """Runs a function with cells placed as the nodes that they are made of."""

    def run(function):
        ln.set_cells(False)
        try:
            return function()
        finally:
            ln.set_cells(True)

    return run


class Weights(ln.Module):
    def __init__(self):
        ln.seed(0)
        kind = {"dtype": "float64"}
        self.square = ln.Parameter((DIM, DIM), ln.init.normal(0, 0.4), **kind)
        self.wide = ln.Parameter((2 * DIM, DIM), ln.init.normal(0, 0.4), **kind)
        self.pair = ln.Parameter((DIM, 2 * DIM), ln.init.normal(0, 0.4), **kind)
        self.bias = ln.Parameter((DIM,), ln.init.normal(), **kind)
        self.scale = ln.Parameter((DIM,), ln.init.normal(1, 0.1), **kind)
        self.number = ln.Parameter((1,), ln.init.normal(1, 0.1), **kind)


W = Weights()

# Each takes a function that picks a value of DIM columns from those made so far.
OPERATIONS = [
    lambda pick: ln.tanh(pick()),
    lambda pick: ln.sigmoid(pick()),
    lambda pick: ln.exp(ln.tanh(pick())),
    lambda pick: ln.relu(pick()) + 0.1,
    lambda pick: ln.softplus(pick()) * 0.5,
    lambda pick: pick() + pick(),
    lambda pick: pick() * pick(),
    lambda pick: pick() - W.bias,
    lambda pick: pick() * W.scale,
    lambda pick: pick() * W.number,
    lambda pick: pick() / (ln.square(pick()) + 1.0),
    lambda pick: ln.maximum(pick(), pick()),
    lambda pick: pick() @ W.square,
    lambda pick: ln.linear(pick(), W.square, W.bias, transpose=True),
    lambda pick: ln.linear(ln.concat([pick(), pick()]), W.pair, W.bias, transpose=True),
    lambda pick: ln.split(ln.linear(pick(), W.wide, transpose=True), 2)[1],
    lambda pick: (lambda a, b: ln.sigmoid(a) * ln.tanh(b))(*ln.split(ln.linear(pick(), W.wide, transpose=True), 2)),
    lambda pick: ln.concat([pick(), pick()])[:, 2 : 2 + DIM],
    lambda pick: ln.concat([pick()[:, :2], pick()[:, 2:]]),
    lambda pick: ln.softmax(pick()),
    lambda pick: ln.log_softmax(pick()) * 0.1,
    lambda pick: ln.layer_norm(pick(), W.scale, W.bias),
    lambda pick: pick() * ln.sum(pick(), axis=1),
    lambda pick: pick() + ln.logsumexp(pick()),
    lambda pick: pick() * ln.max(pick(), axis=1),
]


def random_cell(seed, inputs, size):
    """A function of DIM-column nodes that makes ``size`` values of them and returns some, inputs perhaps among them."""

    @ln.cell
    def function(*arguments):
        rng = random.Random(seed)
        values = list(arguments)
        for _ in range(size):
            values.append(rng.choice(OPERATIONS)(lambda: rng.choice(values[-8:])))
        return tuple(rng.choice(values) for _ in range(rng.randint(1, 3)))

    return function


def train(function, inputs, seed, policy="lookahead", train=True):
    """Places the cell in chains and trees over members with unequal rows; returns losses and gradients."""
    rng = random.Random(seed)
    graph = ln.Graph(dtype="float64", train=train, policy=policy)
    data = np.random.default_rng(seed)
    leaves, losses = [], []
    for rows in (1, 1, 1, 3, 1, 2, 3, 1):
        leaves.append(graph.input(data.normal(size=(rows, DIM)), requires_grad=True))
    pool = list(leaves)
    for _ in range(10):
        first = rng.choice(pool)
        rest = [rng.choice([x for x in pool if x.rows == first.rows]) for _ in range(inputs - 1)]
        made = function(first, *rest)
        losses += [ln.sum(ln.tanh(x)) for x in made]
        pool += [ln.tanh(x) for x in made]
    loss = ln.sum(losses)
    if not train:
        return [loss.value]
    graph.backward(loss)
    result = [loss.value, *(x.grad if x.grad is not None else np.zeros(x.shape) for x in leaves)]
    for parameter in W.parameters():
        result.append(np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.copy())
        parameter.zero_grad()
    return result


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 12), st.sampled_from(["lookahead", "depth", "none"]))
def test_random_cells_equal_their_nodes(plain, seed, inputs, size, policy):
    function = random_cell(seed, inputs, size)
    expected = plain(lambda: train(function, inputs, seed))
    for a, b in zip(train(function, inputs, seed, policy), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(train(function, inputs, seed, policy, train=False)[0], expected[0], rtol=1e-9, atol=1e-9)


def test_a_call_is_one_node():
    @ln.cell
    def gated(x, y):
        return ln.sigmoid(x @ W.square) * ln.tanh(y) + x * (1.0 - ln.sigmoid(x @ W.square))

    graph = ln.Graph(dtype="float64")
    x, y = (graph.input(np.full((2, DIM), v)) for v in (0.3, -0.2))
    before = len(graph)
    out = gated(x, y)
    assert out.op == "cell" and out.shape == (2, DIM)
    assert len(graph) - before == 2  # the cell and, once a graph, its parameter
    gated(x, y)
    assert len(graph) - before == 3
    text = gated.explain()
    assert "fused" in text.split("runs as:")[1] and text.split("runs as:")[1].count("linear") == 1  # equal ones are one


def tree_step(model, graph, lengths, cells=True):
    rng = np.random.default_rng(1)

    def tree(n):
        if n == 1:
            return model.leaf(graph.input(rng.normal(size=(1, 8))))
        k = int(rng.integers(1, n))
        return model(tree(k), tree(n - k))

    loss = ln.sum([ln.sum(ln.square(tree(n).h)) for n in lengths])
    graph.backward(loss)
    return loss.item()


def test_lstm_trees_train_alike(plain):
    def run():
        ln.seed(0)
        model = ln.nn.BinaryTreeLSTMCell(8)
        optimizer = ln.optim.Adam(model.parameters(), lr=0.05)
        graph = ln.Graph()
        losses = []
        for _ in range(5):
            with graph:
                losses.append(tree_step(model, graph, (1, 7, 12, 3)))
            optimizer.step()
        return losses

    np.testing.assert_allclose(run(), plain(run), rtol=1e-5)


def test_cells_in_cells_methods_and_structures(plain):
    class Outer(ln.Module):
        def __init__(self):
            ln.seed(0)
            self.inner = ln.nn.BinaryTreeLSTMCell(4, dtype="float64")
            self.out = ln.nn.Linear(4, 3, dtype="float64")

        @ln.cell
        def forward(self, pair, *, scale=1.0):
            state = self.inner(pair[0], pair[1])
            return [self.out(state.h) * scale, (state,)]

    model = Outer()

    def run():
        graph = ln.Graph(dtype="float64")
        states = [model.inner.leaf(graph.input(np.full((1, 4), v))) for v in (0.1, 0.2)]
        scores, (state,) = model((states[0], states[1]))
        doubled, _ = model((states[0], states[1]), scale=2.0)
        assert np.allclose(doubled.value, 2 * scores.value) and type(state).__name__ == "LSTMState"
        graph.backward(ln.sum(scores) + ln.sum(state.c))
        gradients = [p.grad.copy() for p in model.parameters()]
        model.zero_grad()
        return [scores.value, *gradients]

    for a, b in zip(run(), plain(run), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_one_node_runs_as_plain_nodes():
    @ln.cell
    def mixes_rows(x):
        return ln.tanh(x.T @ x)

    @ln.cell
    def drops(x):
        return ln.dropout(x, 0.5)

    graph = ln.Graph(dtype="float64")
    x = graph.input(np.arange(6.0).reshape(2, 3))
    np.testing.assert_allclose(mixes_rows(x).value, np.tanh(x.value.T @ x.value))
    assert set(np.unique(drops(x + 1.0).value / (x.value + 1.0))) <= {0.0, 2.0}
    assert "plain nodes" in mixes_rows.explain() and "plain nodes" in drops.explain()


def test_mistakes():
    @ln.cell
    def reads(x):
        return x * float(ln.sum(x))

    @ln.cell
    def branches(x):
        return x if ln.sum(x) > 0 else -x

    @ln.cell
    def returns_number(x):
        return x, 3

    @ln.cell
    def double(x):
        return x + x

    graph = ln.Graph(dtype="float64")
    x = graph.input([[1.0, 2.0]])
    for function in (reads, branches, returns_number):
        with pytest.raises(errors.TraceError):
            function(x)
    for build in (
        lambda: double(),
        lambda: double(3.0),
        lambda: double(np.zeros((1, 2))),
        lambda: double(W.bias),
    ):
        with pytest.raises((errors.LazyNetError, TypeError)):
            build()
    assert double(x).value.tolist() == [[2.0, 4.0]]
    other = ln.Graph(dtype="float64").input([[1.0, 2.0]])
    with pytest.raises(errors.LazyNetError):
        ln.cell(lambda a, b: a + b)(x, other)
    graph.clear()
    with pytest.raises(errors.StaleNodeError):
        double(x)


def test_other_columns_types_and_parameters_are_traced_again():
    class Scale(ln.Module):
        def __init__(self):
            self.by = ln.Parameter([2.0])

        @ln.cell
        def forward(self, x):
            return x * self.by

    model, graph = Scale(), ln.Graph()
    for shape in ((1, 2), (1, 3), (4, 2)):
        x = graph.input(np.ones(shape))
        assert model(x).op == "cell" and (model(x).value == 2.0).all()
    model.by = ln.Parameter([3.0])
    assert (model(x).value == 3.0).all()
    model.by.value = [5.0]  # the parameter's own memory: nothing to trace
    assert (model(x).value == 5.0).all()
    model.to("float64")
    wide = ln.Graph(dtype="float64")
    assert (model(wide.input([[1.0, 1.0]])).value == 5.0).all()


def test_part_of_a_batch_gets_gradients(plain):
    """Members that the loss does not depend on, and inputs that ask for no gradient."""

    @ln.cell
    def step(x, y):
        return ln.tanh(x @ W.square + y * W.scale), ln.sigmoid(y)

    def run():
        graph = ln.Graph(dtype="float64")
        data = np.random.default_rng(0)
        xs = [graph.input(data.normal(size=(1, DIM)), requires_grad=i % 2 == 0) for i in range(6)]
        made = [step(x, xs[0]) for x in xs]
        graph.forward()
        graph.backward(ln.sum([ln.sum(made[i][0]) for i in (1, 2, 4)]))
        result = [x.grad for x in xs[::2]] + [W.square.grad.copy(), W.scale.grad.copy()]
        W.zero_grad()
        return [np.zeros((1, DIM)) if x is None else x for x in result]

    for a, b in zip(run(), plain(run), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_eager_incremental_and_anomaly():
    @ln.cell
    def root(x):
        return ln.sqrt(x) * 2.0

    eager = ln.Graph(eager=True)
    assert root(eager.input([[4.0]])).value.tolist() == [[4.0]]
    graph = ln.Graph()
    a = root(graph.input([[4.0]]))
    assert a.item() == 4.0
    assert root(a).item() == 4.0
    with ln.detect_anomaly(), pytest.raises(errors.NonFiniteError, match="cell"):
        graph = ln.Graph()
        root(graph.input([[-1.0]])).item()


class Gates(ln.Module):
    """Linears of one input, of several sizes, with and without bias and transposition, one weight in two of them."""

    def __init__(self):
        self.wide, self.small = ln.nn.Linear(4, 35, dtype="float64"), ln.nn.Linear(4, 3, dtype="float64")
        self.shared = ln.Parameter((4, 3), ln.init.normal(), dtype="float64")
        self.bias = ln.Parameter((3,), ln.init.normal(), dtype="float64")
        self.frozen = ln.nn.Linear(4, 3, dtype="float64")

    @ln.cell
    def forward(self, x):
        a, b, c = self.wide(x), self.small(x), self.frozen(x)
        d, e = ln.linear(x, self.shared, self.bias), ln.linear(x, self.shared, self.small.bias)
        return ln.tanh(a), b * ln.sigmoid(c) + d * e + ln.tanh(b)


def test_linears_of_one_input_are_one_product(plain):
    ln.seed(7)
    model, rng = Gates(), np.random.default_rng(3)
    for parameter in model.frozen.parameters():
        parameter.trainable = False
    rows = [rng.normal(size=(n, 4)) for n in (1, 3, 7, 2)]

    def run(train=True):
        graph = ln.Graph(dtype="float64", train=train)
        inputs = [graph.input(row, requires_grad=True) for row in rows]
        outputs = [model(x) for x in inputs]
        loss = ln.sum([ln.sum(ln.sin(node), axis=None) for pair in outputs for node in pair])
        if not train:
            return [loss.value]
        for parameter in model.parameters():
            parameter.zero_grad()
        graph.backward(loss)
        gradients = [p.grad.copy() for p in model.parameters() if p.trainable]
        return [loss.value, *(x.grad for x in inputs), *gradients]

    for _ in range(2):
        for a, b in zip(run(), plain(run), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    text = model.forward.explain()
    assert text.count("= stacked linear") == 2
    for _ in range(3):  # copies kept for later runs follow each of the weights
        np.testing.assert_allclose(run(train=False)[0], run()[0], rtol=1e-9)
        model.small.weight.value = model.small.weight.value + 0.5
        np.testing.assert_allclose(run(train=False)[0], run()[0], rtol=1e-9)


def test_stacked_weights_change_between_runs_of_one_graph():
    ln.seed(8)
    model = Gates()
    graph, row = ln.Graph(dtype="float64", train=False), np.ones((5, 4))
    for step in range(6):
        with graph:
            outputs = [node.value for node in model(graph.input(row))]
        before = ln.set_cells(False)
        plain_graph = ln.Graph(dtype="float64", train=False)
        expected = [node.value for node in model(plain_graph.input(row))]
        ln.set_cells(before)
        for a, b in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        if step % 2:
            changed = [model.wide, model.small, model.frozen][step // 2].weight
            changed.value = changed.value * -1.5
