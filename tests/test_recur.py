"""Recursions over whole structures equal their places one by one."""

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors


@pytest.fixture(autouse=True)
def cells_on():
    before = ln.set_cells(True)
    yield
    ln.set_cells(before)


def random_tree(rng, leaves):
    """Children of a random binary tree in postorder, and its rows: leaves read the input in order."""
    children, rows = [], []

    def build(n):
        if n == 1:
            children.append([])
            rows.append(sum(row >= 0 for row in rows))
        else:
            k = int(rng.integers(1, n))
            pair = [build(k), build(n - k)]
            children.append(pair)
            rows.append(-1)
        return len(children) - 1

    build(leaves)
    return children, rows


def place_by_place(step, children, rows, x):
    states = []
    for below, row in zip(children, rows, strict=True):
        states.append(step(x[row] if row >= 0 else None, [states[child] for child in below]))
    return states


@pytest.mark.parametrize("kind", ["binary", "child_sum"])
def test_trees_equal_place_by_place(kind):
    ln.seed(0)
    model = ln.nn.TreeLSTM(3, 4, kind, dtype="float64")

    def run(whole, cells):
        before = ln.set_cells(cells)
        rng = np.random.default_rng(1)
        graph = ln.Graph(dtype="float64")
        losses, inputs = [], []
        for leaves in (1, 2, 5, 9, 4):
            children, rows = random_tree(rng, leaves)
            if kind == "child_sum":
                rows = list(range(len(children)))
            x = graph.input(rng.normal(size=(max(rows) + 1, 3)), requires_grad=True)
            inputs.append(x)
            if whole:
                state = model(x, ln.Structure(children, rows)).stacked()
                losses.append(ln.sum(ln.square(state.h)) + ln.sum(state.c))
            else:
                for state in place_by_place(model._step.function, children, rows, x):
                    losses.append(ln.sum(ln.square(state.h)) + ln.sum(state.c))
        loss = ln.sum(losses)
        graph.backward(loss)
        result = [loss.value, *(x.grad for x in inputs), *(p.grad.copy() for p in model.parameters())]
        model.zero_grad()
        ln.set_cells(before)
        return result

    expected = run(False, False)
    for whole, cells in ((True, True), (True, True), (True, False), (False, True)):
        for a, b in zip(run(whole, cells), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


class Lattice(ln.Module):
    """A cell of our own with one, two or three predecessors and two outputs."""

    def __init__(self):
        ln.seed(0)
        self.mix = ln.nn.Linear(4, 4, dtype="float64")

    @ln.cell
    def step(self, x, states):
        total = ln.sum([x, *(state[0] for state in states)])
        return ln.tanh(self.mix(total)), ln.sigmoid(total)


def test_lattices_and_long_chains():
    model = Lattice()
    rng = np.random.default_rng(0)
    children = [sorted({int(c) for c in rng.integers(max(0, i - 4), i, size=3)}) if i else [] for i in range(60)]
    graph = ln.Graph(dtype="float64")
    x = graph.input(rng.normal(size=(60, 4)))
    expected = [state[0].value for state in place_by_place(model.step.function, children, range(60), x)]
    for _ in range(2):
        states = ln.recur(model.step, children, x)
        np.testing.assert_allclose(states.stacked()[0].value, np.concatenate(expected), rtol=1e-12)
        np.testing.assert_allclose(states[7][0].value, expected[7], rtol=1e-12)
        assert len(states[:3]) == 3 and len(states[-1]) == 2
    chain = [[], *([i] for i in range(20_000 - 1))]
    with graph:
        x = graph.input(rng.normal(size=(20_000, 4)) * 0.1)
        loss = ln.sum(ln.recur(model.step, chain, x)[-1][0])
        graph.backward(loss)
        assert np.isfinite(loss.item())


def test_mistakes():
    model = ln.nn.TreeLSTM(3, 4)
    graph = ln.Graph()
    x = graph.input(np.zeros((2, 3)))
    good = ln.Structure([[], [], [0, 1]], rows=[0, 1, -1])
    for build, error in (
        (lambda: ln.Structure([[0]]), errors.NodeIndexError),
        (lambda: ln.Structure([[], [1]]), errors.NodeIndexError),
        (lambda: ln.Structure([[], [-1]]), errors.NodeIndexError),
        (lambda: ln.Structure([[], "ab"]), errors.NodeTypeError),
        (lambda: ln.Structure([None]), errors.NodeTypeError),
        (lambda: ln.Structure([[]], rows=[0, 1]), errors.ShapeError),
        (lambda: ln.recur(lambda x, states: x, good, x), errors.NodeTypeError),
        (lambda: model(None, good), errors.NodeTypeError),
        (lambda: model(x, [[], [0]]), errors.NodeValueError),
        (lambda: model(x, ln.Structure([[]], rows=[5])), errors.NodeIndexError),
        (lambda: ln.nn.TreeLSTM(3, 4, "ternary"), errors.NodeValueError),
    ):
        with pytest.raises(error):
            build()
    for _ in range(2):  # traced by the first, placed by the core in the second
        assert model(x, good).stacked().h.shape == (3, 4)
    with pytest.raises(errors.NodeIndexError):
        model(x, ln.Structure([[]], rows=[5]))
    with pytest.raises(errors.LazyNetError):
        model(graph.input(np.zeros((2, 5))), good)
    assert np.isfinite(model(x, good).stacked().h.value).all()


@pytest.mark.parametrize("cells", [True, False])
def test_an_initial_state_stands_in_for_missing_children(cells):
    ln.set_cells(cells)
    ln.seed(2)

    class Step(ln.Module):
        def __init__(self):
            self.linear = ln.nn.Linear(3, 3, dtype="float64")

        @ln.cell
        def forward(self, x, states, sign):
            return ln.tanh(sign * self.linear(ln.sum(states)) + x)

    step, graph = Step(), ln.Graph(dtype="float64")
    x = graph.input(np.random.default_rng(0).normal(size=(4, 3)))
    start = graph.input([[0.1, 0.2, 0.3]], requires_grad=True)
    for _ in range(2):  # the first call traces
        states = ln.recur(step.forward, ln.Structure.chain(4, reverse=True), x, -1.0, initial=start)
    expected, results = start, []
    for row in (3, 2, 1, 0):
        expected = ln.tanh(-1.0 * step.linear(expected) + x[row])
        results.append(expected)
    np.testing.assert_allclose(states.stacked().value, np.concatenate([r.value for r in results]), rtol=1e-12)
    gradients = []
    for end in (states[-1], expected):
        graph.backward(ln.sum(end))
        gradients.append(start.grad)
    np.testing.assert_allclose(*gradients, rtol=1e-12)


def test_what_recur_refuses():
    lstm, graph = ln.nn.LSTM(3, 2), ln.Graph()
    x, zero = graph.input(np.zeros((2, 8))), graph.constant(0.0, 1, 2)
    chain, state = ln.Structure.chain(2), ln.nn.LSTMState(zero, zero)
    for _ in range(2):
        ln.recur(lstm._cell, chain, x, "_l0", initial=state)
    with pytest.raises(errors.NodeTypeError, match="options"):
        ln.recur(lstm._cell, chain, x, zero, initial=state)
    with pytest.raises(errors.NodeIndexError, match="place 2 reads row 2 .* at least 3 rows are required"):
        ln.recur(lstm._cell, ln.Structure.chain(3), x, "_l0", initial=state)
    with pytest.raises(errors.NodeTypeError, match="a cell is required"):
        ln.recur(lstm.forward, chain, x)


@pytest.mark.parametrize("cells", [True, False])
def test_a_place_without_children_and_row_needs_an_initial_state(cells):
    @ln.cell
    def step(row, states):
        return states[0] if row is None else ln.tanh(row + states[0])

    graph, start = ln.Graph(), ln.Structure([[], [0]], rows=[-1, 0])
    x, zero = graph.input([[1.0]]), graph.constant(0.0)
    before = ln.set_cells(cells)
    try:
        for _ in range(2):
            assert ln.recur(step, start, x, initial=zero)[1].item() == pytest.approx(np.tanh(1))
            with pytest.raises(errors.NodeValueError, match="place 0 .* an initial state, is required"):
                ln.recur(step, start, x)
    finally:
        ln.set_cells(before)


def test_a_long_sequence_is_placed_without_recursion():
    gru, graph = ln.nn.GRU(2, 2), ln.Graph()
    for _ in range(2):
        outputs, finals = gru(graph.input(np.ones((3000, 2))))
    assert outputs.value.shape == (3000, 2)
    np.testing.assert_array_equal(outputs.value[-1:], finals[0].value)
    assert np.isfinite(outputs.value).all()


@pytest.mark.parametrize("cells", [True, False])
def test_what_structures_and_states_refuse(cells):
    ln.set_cells(cells)
    model, graph = Lattice(), ln.Graph(dtype="float64")
    x = graph.input(np.zeros((2, 4)))
    for build, error, text in (
        (lambda: ln.Structure([[], [0.5]]), errors.NodeTypeError, "numbers of type float64"),
        (lambda: ln.Structure([[], [0]], rows=[0.0, 1.0]), errors.NodeTypeError, "numbers of type float64"),
        (lambda: ln.Structure([[], [0]], rows=np.array([0, 2**40])), errors.NodeTypeError, "32 bits"),
        (lambda: ln.Structure([[], [0]], rows=[0, -2]), errors.NodeIndexError, "place 1 reads row -2"),
        (
            lambda: ln.recur(model.step, ln.Structure([[], [], [0]], rows=[0, -1, -1]), x),
            errors.NodeValueError,
            "place 1 reads no row",
        ),
    ):
        with pytest.raises(error, match=text):
            build()
    for _ in range(2):
        states = ln.recur(model.step, [[], [0]], x)
        for index in (5, -3):
            with pytest.raises(errors.NodeIndexError, match=f"place {index} of 2"):
                states[index]
        assert len(list(states)) == len(states[:]) == 2 and states[-1] is not None


@pytest.mark.parametrize("kind", [ln.nn.LSTM, ln.nn.GRU, ln.nn.RNN])
def test_what_sequences_refuse(kind):
    model, graph = kind(3, 2, num_layers=2), ln.Graph()
    x, name = graph.input(np.zeros((4, 3))), kind.__name__
    node, wide, two = (graph.constant(0.0, *shape) for shape in ((1, 2), (1, 3), (2, 2)))

    def state(h):
        return (h, node) if kind is ln.nn.LSTM else h

    assert model(x, [state(node), state(node)])[0].shape == (4, 2)
    wrong = node if kind is ln.nn.LSTM else (node, node)
    for initial, error, text in (
        ([state(node)] * 3, errors.NodeValueError, "initial is 3 states; a list of 2"),
        ([], errors.NodeValueError, "initial is 0 states"),
        (node, errors.NodeTypeError, "initial is Node"),
        (7, errors.NodeTypeError, "initial is int"),
        ([state(node), state(two)], errors.ShapeError, r"initial state 1 has shape \(2, 2\); \(1, 2\)"),
        ([state(wide), state(node)], errors.ShapeError, r"initial state 0 has shape \(1, 3\)"),
        ([wrong, wrong], errors.NodeTypeError, "initial state 0 is"),
        ([None, None], errors.NodeTypeError, "initial state 0 is NoneType"),
        ([np.zeros((1, 2))] * 2, errors.NodeTypeError, "initial state 0 is ndarray"),
    ):
        for given in (x, [x[0], x[1]], graph.input(np.zeros((0, 3)))):
            with pytest.raises(error, match=f"{name}: {text}"):
                model(given, initial)
    for given, text in (
        (np.zeros((4, 3)), "ndarray is given"),
        (None, "NoneType is given"),
        ([x[0], np.zeros(3)], "list that holds ndarray"),
    ):
        with pytest.raises(errors.NodeTypeError, match=f"{name}: {text}"):
            model(given)


@pytest.mark.parametrize("kind", [ln.nn.LSTMCell, ln.nn.GRUCell, ln.nn.RNNCell])
def test_what_single_steps_refuse(kind):
    for given in (np.zeros((1, 3)), None):
        with pytest.raises(errors.NodeTypeError, match=f"{kind.__name__}: .* is given; a node is required"):
            kind(3, 2)(given)
