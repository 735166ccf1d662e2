"""Mistakes of users: an exception of ours that says what was given and what is required; the graph stays usable."""

import copy
import pickle
import threading

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors


@pytest.fixture
def graph():
    return ln.Graph()


def test_shapes(graph):
    x, y = graph.input(np.zeros((2, 3))), graph.input(np.zeros((4, 5)))
    for build in (
        lambda: x + y,
        lambda: x @ y,
        lambda: ln.concat([x, y]),
        lambda: ln.concat([x, y], axis=0),
        lambda: ln.sum([x, y]),
        lambda: ln.linear(x, ln.Parameter((4, 2))),
        lambda: ln.linear(x, ln.Parameter((3, 2)), ln.Parameter((3,))),
        lambda: ln.layer_norm(x, ln.Parameter((4,))),
        lambda: ln.reshape(x, 4, 2),
        lambda: ln.split(x, 2),
        lambda: ln.cross_entropy(x, [0]),
        lambda: ln.max(graph.input(np.zeros((0, 3)))),
        lambda: graph.input(np.zeros((2, 2, 2))),
        lambda: graph.backward(x),
    ):
        with pytest.raises(errors.ShapeError, match="required|must"):
            build()
    with pytest.raises(ValueError, match=r"add: the arguments have shapes \(2, 3\), \(4, 5\)"):
        x + y
    np.testing.assert_array_equal((x + 1.0).value, np.ones((2, 3)))


def test_lists_and_modules(graph):
    x, linear = graph.input([1.0]), ln.nn.Linear(1, 1)
    for build in (ln.average, ln.concat):
        with pytest.raises(errors.NodeTypeError, match="generator is given; a list of nodes is required"):
            build(node for node in [x])
    with pytest.raises(errors.NodeTypeError, match="generator is given; a node or a list of nodes is required"):
        ln.sum(node for node in [x])
    for build in (lambda: ln.linear(x, linear), lambda: ln.tanh(linear), lambda: ln.linear_cross_entropy(x, linear, 0)):
        with pytest.raises(errors.NodeTypeError, match="Linear.* is given; .*module.weight"):
            build()


def test_types(graph):
    x = graph.input([1.0])
    p = ln.Parameter([[1.0]])
    for build in (
        lambda: ln.tanh(None),
        lambda: ln.tanh("word"),
        lambda: ln.tanh(p),
        lambda: p + p,
        lambda: x + None,
        lambda: x * "word",
        lambda: ln.linear(x, None),
        lambda: ln.linear(None, p),
        lambda: ln.concat([x, None]),
        lambda: ln.concat(x),
        lambda: ln.sum(None),
        lambda: ln.lookup(graph, None, 1),
        lambda: ln.lookup(graph, p, "word"),
        lambda: ln.lookup(graph, p, 0.5),
        lambda: ln.cross_entropy(x, 0.5),
        lambda: ln.cross_entropy(None, 0),
        lambda: ln.clip(x, None, 1),
        lambda: ln.dropout(x, "half"),
        lambda: ln.layer_norm(x, eps="small"),
        lambda: ln.slice_rows("x", 0, 1),
        lambda: x[True],
        lambda: graph.constant(4, 4, 1.0),
        lambda: ln.nn.Linear(3.0, 2),
        lambda: ln.optim.SGD(ln.nn.Linear(3, 2), lr=0.1),
        lambda: ln.Structure(3),
        lambda: np.asarray(x),
        lambda: graph.input(None),
        lambda: graph.input([None, 1.0]),
        lambda: graph.input([1j]),
        lambda: graph.input([x, x]),
        lambda: ln.slice_cols(x, 0, 0.5),
        lambda: ln.reshape(x, 1, None),
        lambda: ln.cross_entropy(x, 0, ignore_index=None),
        lambda: x["word"],
        lambda: bool(x),
        lambda: copy.copy(x),
        lambda: pickle.dumps(x),
        lambda: x < x,
        lambda: graph.input("word"),
        lambda: graph.forward(None),
        lambda: graph.backward(3.0),
        lambda: ln.Parameter(object()),
        lambda: ln.Parameter([[1.0]], dtype="int32"),
        lambda: ln.Graph(dtype="float16"),
        lambda: ln.optim.SGD([x], lr=0.1),
        lambda: ln.softmax(x, mask=[[1.0]]),
    ):
        with pytest.raises(errors.NodeTypeError):
            build()


def test_unfinished_objects_are_no_operands(graph):
    """Objects that Python made without their __init__."""
    x = graph.input([[1.0, 2.0]])
    with pytest.raises(TypeError):
        ln.Node.__new__(ln.Node)
    for build in (
        lambda: ln.linear(x, ln.Parameter.__new__(ln.Parameter)),
        lambda: x + ln.Parameter.__new__(ln.Parameter),
        lambda: ln.lookup(ln.Graph.__new__(ln.Graph), ln.Parameter((2, 2)), 0),
        lambda: ln.tanh(ln.Node(ln.Graph.__new__(ln.Graph), 0)),
        lambda: ln.Node(ln.Graph.__new__(ln.Graph), 0)[0],
        lambda: ln.Node(ln.Graph.__new__(ln.Graph), 0) * x,
    ):
        with pytest.raises(errors.LazyNetError):
            build()
    assert x.value.tolist() == [[1.0, 2.0]]


def test_values(graph):
    x = graph.input([1.0, 2.0])
    for build in (
        lambda: ln.concat([]),
        lambda: ln.sum([]),
        lambda: ln.sum(x, axis=2),
        lambda: ln.softmax(x, axis=None),
        lambda: ln.dropout(x, 1.0),
        lambda: ln.clip(x, 2, 1),
        lambda: ln.reshape(x, 2**70, 1),
        lambda: ln.cross_entropy(x, 0, reduction="total"),
        lambda: ln.gelu(x, "fast"),
        lambda: x / 0,
        lambda: ln.Graph(policy="best"),
        lambda: ln.optim.SGD([], lr=0.1),
        lambda: ln.set_num_threads(0),
    ):
        with pytest.raises(errors.NodeValueError):
            build()


def test_indices(graph):
    table = ln.Parameter((5, 3), name="words", sparse=True)
    for ids in (5, -1, [0, 7], np.array([2, 2**40]), 2**70):
        with pytest.raises(IndexError, match="words"):
            ln.lookup(graph, table, ids)
    x = graph.input(np.zeros((2, 3)))
    for build in (
        lambda: x[2],
        lambda: x[-3],
        lambda: x[:, 3],
        lambda: x[::2],
        lambda: ln.slice_rows(x, 1, 5),
        lambda: ln.cross_entropy(x, [0, 3]),
        lambda: ln.cross_entropy(x, [0, -1]),
        lambda: ln.nll_loss(x, [-100, 9]),
    ):
        with pytest.raises(errors.NodeIndexError):
            build()


def test_stale_and_foreign_nodes(graph):
    x = graph.input([1.0])
    other = ln.Graph().input([1.0])
    with pytest.raises(errors.GraphError, match="graph"):
        x + other
    with pytest.raises(errors.GraphError):
        graph.forward(other)
    graph.clear()
    for use in (
        lambda: x.value,
        lambda: x + 1.0,
        lambda: ln.tanh(x),
        lambda: x.shape,
        lambda: graph.backward(x),
    ):
        with pytest.raises(errors.StaleNodeError, match="%0"):
            use()
    assert "stale" in repr(x)


def test_backward_without_training():
    graph = ln.Graph(train=False)
    with pytest.raises(errors.GraphError, match="train=False"):
        graph.backward(graph.input([1.0]))


def test_element_types():
    graph = ln.Graph()
    with pytest.raises(errors.NodeTypeError, match="weights.*float64.*float32"):
        ln.linear(graph.input([1.0]), ln.Parameter([[1.0]], dtype="float64", name="weights"))
    with pytest.raises(errors.NodeTypeError, match="sparse"):
        ln.linear(graph.input([1.0]), ln.Parameter([[1.0]], sparse=True))


def test_out_of_memory():
    parameter = ln.Parameter(np.ones((64, 64)))
    graph = ln.Graph(memory_limit=1 << 20, chunk_bytes=1 << 16)
    x = graph.input(np.ones((64, 64)))
    for _ in range(100):
        x = ln.tanh(x @ parameter)
    with pytest.raises(MemoryError, match=r"may hold 1048576.*biggest batches"):
        graph.backward(ln.sum(x))
    assert parameter.grad is None
    with graph:
        assert graph.input([[1.0]]).item() == 1
        graph.backward(ln.sum(graph.input(np.ones((1, 64))) @ parameter))
    assert parameter.grad.sum() == 64 * 64


def test_anomaly_names_the_line():
    with ln.detect_anomaly():
        graph = ln.Graph()
        x = graph.input([[-1.0, 1.0]], requires_grad=True)
        bad = ln.log(x)  # this line
        with pytest.raises(errors.NonFiniteError, match=r"log: .*row 0, col 0.*test_errors\.py:\d+"):
            graph.forward(bad)
        with graph:
            root = ln.sqrt(graph.input([[0.0]], requires_grad=True))
            with pytest.raises(errors.NonFiniteError, match=r"sqrt: .*backward.*test_errors\.py:\d+"):
                graph.backward(root)
        with pytest.raises(errors.NonFiniteError, match="input"):
            graph.input([[np.nan]])
        with graph:
            masked = ln.softmax(graph.input([[0.0, 1.0]]), mask=[[True, False]])
            np.testing.assert_array_equal(masked.value, [[1, 0]])
        with pytest.raises(errors.NonFiniteError, match="weights"):
            graph.parameter(ln.Parameter([[np.inf]], name="weights"))
    quiet = ln.Graph()
    assert np.isnan(ln.log(quiet.input([[-1.0]])).value).all()


def test_two_threads_in_one_graph_do_not_crash():
    graph = ln.Graph()
    seen = []

    def work():
        for _ in range(300):
            try:
                ln.sum(ln.tanh(graph.input(np.ones((8, 8))))).item()
            except errors.GraphError as error:
                seen.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ln.tanh(graph.input([[0.0]])).item() == 0


def test_a_policy_that_chooses_nonsense():
    class Nonsense(ln.batching.Policy):
        def choose(self, ready):
            return "tanh"

    class Broken(ln.batching.Policy):
        def choose(self, ready):
            raise KeyError("mine")

    for policy, error in ((Nonsense(), errors.NodeValueError), (Broken(), KeyError)):
        graph = ln.Graph(policy=policy)
        x = ln.tanh(graph.input([[0.0]]))
        with pytest.raises(error):
            graph.forward(x)
        graph.policy = "agenda"
        assert x.item() == 0


def test_state_dict_lists_everything():
    model = ln.nn.Linear(3, 2)
    state = model.state_dict()
    before = {k: v.copy() for k, v in state.items()}
    wrong = {"weight": np.zeros((2, 2)), "extra": np.zeros(1)}
    with pytest.raises(errors.StateDictError, match=r"missing: bias; unexpected: extra; misshapen: weight \(2, 2\)"):
        model.load_state_dict(wrong)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    model.load_state_dict({"bias": np.ones(2)}, strict=False)
    np.testing.assert_array_equal(model.bias.value, 1)


def test_backward_needs_no_memory_for_what_the_loss_does_not_read():
    graph = ln.Graph(memory_limit=1 << 24)
    x = graph.input([[2.0]], requires_grad=True)
    graph.constant(1.0, 10**6, 10**6)
    graph.backward(x * x)
    assert x.grad.tolist() == [[4.0]]


def test_gradients_of_nodes_are_kept_only_where_asked_for():
    graph = ln.Graph()
    x = graph.input([[2.0]], requires_grad=True)
    y, unused = x * 3.0, x * 5.0
    loss = ln.sum(ln.square(y))
    graph.backward(loss)
    assert x.grad.tolist() == [[36.0]] and unused.grad is None
    with pytest.raises(errors.GraphError, match=r"node %1 mul_scalar \(1, 1\) was not kept.*retain_grad=True"):
        y.grad  # noqa: B018
    graph.backward(loss, retain_grad=True)
    assert y.grad.tolist() == [[12.0]] and loss.grad.tolist() == [[1.0]] and x.grad.tolist() == [[36.0]]
    graph.backward(loss)
    assert x.grad.tolist() == [[36.0]]


def test_gradients_share_memory():
    graph = ln.Graph()
    x = graph.input(np.ones((1000, 100)), requires_grad=True)
    for number in range(20):
        x = x * (1.0 + number / 10)  # an operator of its own, so that each has a buffer of its own
    loss = ln.sum(x)
    graph.forward(loss)
    values = graph.statistics()["pool"]["peak_bytes_in_use"]
    graph.backward(loss)
    assert graph.statistics()["pool"]["peak_bytes_in_use"] < 1.2 * values


def test_settings_that_are_no_integers():
    for build, text in (
        (lambda: ln.set_num_threads("2"), "set_num_threads: threads '2'"),
        (lambda: ln.set_num_threads(1.5), "set_num_threads: threads 1.5"),
        (lambda: ln.Graph(memory_limit=None), "graph: memory_limit None"),
        (lambda: ln.Graph(seed="a"), "graph: seed 'a'"),
        (lambda: ln.Graph().set_memory_limit("1G"), "set_memory_limit: limit '1G'"),
    ):
        with pytest.raises(errors.NodeTypeError, match=f"{text} is given; an integer is required"):
            build()
    with pytest.raises(errors.NodeValueError):
        ln.set_num_threads(0)
