"""Parameters, modules, initialisers, optimizers, memory, plans, data and the demo."""

import copy
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

import lazynet as ln
from lazynet import demo, errors
from lazynet.data import format_tree, generate_listops, minibatches, parse_tree, read_tagged, read_trees
from lazynet.data.listops import evaluate


def test_initialisers():
    rng = np.random.default_rng(0)
    q = ln.init.orthogonal()((6, 4), rng)
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-12)
    for make, std in (
        (ln.init.xavier_uniform(), (2 / 300) ** 0.5),
        (ln.init.xavier_normal(), (2 / 300) ** 0.5),
        (ln.init.he_uniform(), (2 / 200) ** 0.5),
        (ln.init.he_normal(), (2 / 200) ** 0.5),
        (ln.init.normal(0, 0.3), 0.3),
    ):
        assert abs(make((100, 200), rng).std() / std - 1) < 0.05
    assert ln.Parameter((2, 2), ln.init.constant(3)).value.tolist() == [[3, 3], [3, 3]]
    assert ln.Parameter((2,), ln.init.from_array([1, 2])).value.tolist() == [1, 2]
    with pytest.raises(errors.ShapeError):
        ln.Parameter((3,), ln.init.from_array([1, 2]))


def test_seed_makes_models_equal():
    def weights():
        ln.seed(7)
        return ln.nn.LSTM(3, 4).state_dict()

    for a, b in zip(weights().values(), weights().values(), strict=True):
        np.testing.assert_array_equal(a, b)


class Shared(ln.Module):
    def __init__(self):
        self.layers = [ln.nn.Linear(2, 2), ln.nn.Linear(2, 2, bias=False)]
        self.again = self.layers[0]
        self.by_name = {"a": ln.nn.LayerNorm(2)}


def test_module_names_and_sharing():
    model = Shared()
    names = [name for name, _ in model.named_parameters()]
    assert names == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "by_name.a.weight",
        "by_name.a.bias",
    ]
    assert "again.weight" in model.state_dict()
    doubled = model.to("float64")
    assert doubled.again.weight is doubled.layers[0].weight and doubled.again.weight.dtype == np.float64
    assert not model.eval().layers[0].training


def test_optimizer_state_round_trip():
    def make():
        ln.seed(1)
        model = ln.nn.Embedding(6, 3)
        return model, ln.optim.Adam(model.parameters(), lr=0.1)

    def train(model, optimizer, steps):
        graph = ln.Graph()
        for step in steps:
            with graph:
                graph.backward(ln.sum(ln.square(model(graph, [step % 6, 2]))))
            optimizer.step()

    whole, optimizer = make()
    train(whole, optimizer, range(8))
    model, first = make()
    train(model, first, range(4))
    resumed, second = make()
    resumed.load_state_dict(model.state_dict())
    second.load_state_dict(first.state_dict())
    train(resumed, second, range(4, 8))
    assert resumed.weight.value.tobytes() == whole.weight.value.tobytes()


def test_sparse_updates_leave_other_rows_alone():
    table = ln.Parameter(np.ones((5, 2)), sparse=True)
    optimizer = ln.optim.AdamW([table], lr=0.1, weight_decay=0.5)
    graph = ln.Graph()
    graph.backward(ln.sum(ln.lookup(graph, table, [1, 3, 1])))
    np.testing.assert_array_equal(table.grad.values, [[2, 2], [1, 1]])
    assert optimizer.step(max_norm=1.0) == pytest.approx(10**0.5)
    assert (table.value[[0, 2, 4]] == 1).all() and (table.value[[1, 3]] < 1).all()
    assert table.grad is None


def test_frozen_parameters():
    model = ln.nn.Linear(2, 2)
    model.weight.trainable = False
    graph = ln.Graph()
    graph.backward(ln.sum(model(graph.input([[1.0, 2.0]]))))
    assert model.weight.grad is None and model.bias.grad is not None


def test_parameters_outlive_their_objects_in_a_graph():
    graph = ln.Graph()
    p = ln.Parameter([[2.0]])
    y = graph.input([[3.0]]) * p
    del p
    other = ln.Parameter([[100.0]])
    assert y.item() == 6 and other.value.item() == 100


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc, which Linux has")
def test_resident_memory_is_flat_over_2000_steps():
    rng = random.Random(0)
    model = ln.nn.BinaryTreeLSTMCell(16)
    embed = ln.nn.Embedding(50, 16)
    optimizer = ln.optim.Adam(model.parameters() + embed.parameters())
    graph = ln.Graph()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def step():
        with graph:
            states = [model.leaf(embed(graph, rng.randrange(50))) for _ in range(rng.randint(1, 12))]
            while len(states) > 1:
                right, left = states.pop(rng.randrange(len(states))), states.pop()
                states.append(model(left, right))
            graph.backward(ln.sum(states[0].h))
        optimizer.step()

    for _ in range(500):
        step()
    settled = resident()
    for _ in range(1500):
        step()
    assert resident() - settled < 4 << 20


def test_inference_releases_memory():
    def peak(train):
        graph = ln.Graph(train=train)
        x = graph.input(np.ones((64, 256)))
        for _ in range(100):
            x = ln.tanh(x)
        assert x.value.shape == (64, 256)
        return graph.statistics()["pool"]["peak_bytes_in_use"]

    assert peak(False) < peak(True) / 10


def test_values_released_in_inference_come_back_on_demand():
    graph = ln.Graph(train=False)
    a = ln.tanh(graph.input([[0.5]]))
    b = ln.exp(a)
    assert b.item() == pytest.approx(np.exp(np.tanh(0.5)))
    assert not a.computed
    assert a.item() == pytest.approx(np.tanh(0.5))
    assert (b * a).item() == pytest.approx(np.exp(np.tanh(0.5)) * np.tanh(0.5))


def test_only_new_nodes_run():
    graph = ln.Graph()
    x = ln.tanh(graph.input([[0.5]]))
    graph.forward(x)
    y = ln.tanh(x)
    graph.forward(y)
    graph.forward(y)
    assert graph.statistics()["kernels_forward"] == 2


def test_eager_computes_at_once_and_trim_gives_back():
    graph = ln.Graph(eager=True)
    x = ln.tanh(graph.input(np.ones((100, 100))))
    assert x.computed
    graph.clear()
    graph.trim()
    assert graph.statistics()["pool"]["bytes_reserved"] == 0


def test_plan_text_drawing_and_checks():
    graph = ln.Graph()
    model = ln.nn.BinaryTreeLSTMCell(4)
    leaves = [model.leaf(graph.input(np.ones((1, 4)))) for _ in range(3)]
    root = model(model(leaves[0], leaves[1]), leaves[2])
    plan = graph.plan(root.h)
    plan.verify()
    assert not plan.executed and len(plan.batches) >= plan.lower_bound
    shown = "linear transpose=1" if os.environ.get("LAZYNET_CELLS") == "0" else "cell BinaryTreeLSTMCell.forward"
    assert shown in str(plan) and "<table>" in plan.to_html()
    graph.forward(root.h)
    done = graph.plan()
    broken = graph.plan(ln.tanh(root.h))
    assert done.batches
    broken.batches = broken.batches * 2
    with pytest.raises(errors.GraphError, match="is in batches"):
        broken.verify()


def test_trees(tmp_path):
    text = "(3 (2 It) (4 (2 really) (3 works)))"
    tree = parse_tree(text)
    assert format_tree(tree) == text
    assert [node.word for node in tree.postorder() if node.is_leaf] == ["It", "really", "works"]
    for wrong in ("", "(3", "word", "(3 (2 a))", "(x a)", "(3 (2 a) (2 b)) (1 c)", "(3 a b c)"):
        with pytest.raises(errors.DataError):
            parse_tree(wrong)
    path = tmp_path / "train.txt"
    path.write_text(text + "\n\n(1 a\u00a0b)\n(2 (1 x)\n", encoding="utf8")
    with pytest.raises(errors.DataError, match=r"train\.txt, line 4"):
        read_trees(path)
    with pytest.raises(errors.DataError, match="cannot be read"):
        read_trees(tmp_path / "absent.txt")
    deep = "(1 a)"
    for _ in range(5000):
        deep = f"(1 {deep} (2 b))"
    assert format_tree(parse_tree(deep)) == deep


def test_listops_labels_are_right():
    def value(tree):
        """The value of a complete expression, by its brackets."""
        if tree.is_leaf:
            return int(tree.word)
        arguments, node = [], tree.left
        while not node.is_leaf:
            arguments.append(value(node.right))
            node = node.left
        return evaluate(node.word, arguments[::-1])

    trees = generate_listops(200, seed=3)
    for tree in trees:
        for node in tree.postorder():
            if node.label >= 0:
                assert value(node) == node.label
    assert format_tree(trees[7]) == format_tree(generate_listops(8, seed=3)[7])


def test_minibatches_and_tagged(tmp_path):
    assert sorted(sum(minibatches(list(range(10)), 4, seed=1), [])) == list(range(10))
    bucketed = list(minibatches([3, 1, 2, 5, 4, 6], 2, bucket_by=lambda x: x))
    assert sorted(map(sorted, bucketed)) == [[1, 2], [3, 4], [5, 6]]
    path = tmp_path / "tags.txt"
    path.write_text("a|X b|c|Y\n\n", encoding="utf8")
    assert read_tagged(path) == [(["a", "b|c"], ["X", "Y"])]
    path.write_text("a", encoding="utf8")
    with pytest.raises(errors.DataError, match="line 1"):
        read_tagged(path)


def test_demo_runs(tmp_path, capsys):
    trees = "\n".join(format_tree(t) for t in generate_listops(30, seed=5))
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text(trees, encoding="utf8")
    score = demo.main(["--data", str(tmp_path), "--dim", "8", "--epochs", "1", "--threads", str(ln.num_threads())])
    printed = capsys.readouterr().out
    assert 0 <= score <= 1 and "nodes/s" in printed and "pool:" in printed
    with pytest.raises(errors.DataError, match="cannot be read"):
        demo.main(["--data", str(tmp_path / "absent")])


class Scaled(ln.Module):
    def __init__(self):
        self.linear, self.scale, self.tied = ln.nn.Linear(2, 2), 2.0, None
        self.tied = self.linear.weight

    @ln.cell
    def forward(self, x):
        return ln.tanh(self.linear(x)) * self.scale


def test_copies_and_pickles_of_modules():
    ln.seed(3)
    model = Scaled()
    graph = ln.Graph()
    x = graph.input([[0.3, -0.2]])
    expected = model(x).value
    model.parameters()[0].trainable = False
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other(x).value, expected)
        assert other.tied is other.linear.weight and other.linear.weight is not model.linear.weight
        assert not other.linear.weight.trainable and other.linear.bias.name == model.linear.bias.name
        other.linear.weight.value[...] = 0
        np.testing.assert_array_equal(model(x).value, expected)


def test_a_cell_follows_the_attributes_that_it_read():
    model, graph = Scaled(), ln.Graph()
    x = graph.input([[0.3, -0.2]])
    before = model(x).value
    model.unread = 5
    model.scale = 4.0
    np.testing.assert_allclose(model(x).value, 2 * before, rtol=1e-6)
    assert "__getattribute__" not in vars(ln.Module)


def test_an_optimizer_made_before_a_conversion():
    model = Scaled()
    weight = model.linear.weight
    optimizer = ln.optim.SGD([*model.parameters(), weight], lr=1.0)
    assert len(optimizer.parameters) == 2
    value = weight.value.copy()
    model.to("float64")
    assert model.linear.weight is weight and weight.dtype == np.float64
    np.testing.assert_array_equal(weight.value, value)
    with pytest.raises(ln.errors.NodeTypeError, match="became float64"):
        optimizer.step()


def test_states_of_another_kind():
    model = ln.nn.Linear(2, 2)
    adam = ln.optim.Adam(model.parameters())
    graph = ln.Graph()
    graph.backward(ln.sum(model(graph.input([[1.0, 2.0]])), axis=None))
    adam.step()
    with pytest.raises(errors.StateDictError, match="unexpected: 0.first_moment"):
        ln.optim.SGD(model.parameters(), lr=0.1).load_state_dict(adam.state_dict())
    with pytest.raises(errors.StateDictError, match="a mapping"):
        model.load_state_dict([1, 2])
    with pytest.raises(errors.StateDictError, match="bias"):
        model.load_state_dict({**model.state_dict(), "bias": "hello"})


def test_copies_of_weights_that_inference_keeps_follow_the_weights():
    ln.seed(4)
    linear, rows = ln.nn.Linear(8, 24), np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    graph = ln.Graph(train=False)

    def run():
        with graph:
            return linear(graph.input(rows)).value

    def expected():
        return rows @ linear.weight.value.T + linear.bias.value

    for _ in range(3):
        np.testing.assert_allclose(run(), expected(), rtol=1e-5, atol=1e-5)
        linear.weight.value *= 2  # no view of it is left
        np.testing.assert_allclose(run(), expected(), rtol=1e-5, atol=1e-5)
    view = linear.weight.value
    for _ in range(3):
        view += 1
        np.testing.assert_allclose(run(), expected(), rtol=1e-5, atol=1e-5)
    part = view[:3]
    del view
    for _ in range(2):
        part -= 1
        np.testing.assert_allclose(run(), expected(), rtol=1e-5, atol=1e-5)
    optimizer, training = ln.optim.SGD(linear.parameters(), lr=0.5), ln.Graph()
    for _ in range(3):
        run()
        training.backward(ln.sum(linear(training.input(rows)), axis=None))
        optimizer.step()
        np.testing.assert_allclose(run(), expected(), rtol=1e-5, atol=1e-5)
    other = ln.nn.Linear(8, 24)
    linear.load_state_dict(other.state_dict())
    np.testing.assert_allclose(run(), expected(), rtol=1e-5, atol=1e-5)
    in_use = graph.statistics()
    run()
    assert graph.statistics()["pool"]["bytes_in_use"] == in_use["pool"]["bytes_in_use"]


def test_backward_of_a_node_is_that_of_its_graph():
    graph = ln.Graph()
    x = graph.input([[3.0]], requires_grad=True)
    y = ln.square(x)
    y.backward()
    assert x.grad.tolist() == [[6.0]]
    (y * 2.0).backward(retain_grad=True)
    assert y.grad.tolist() == [[2.0]]
