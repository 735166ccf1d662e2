"""The same model and weights as in PyTorch: losses, gradients, and the weights after ten updates of Adam."""

import numpy as np
import pytest

import lazynet as ln
from lazynet.data import generate_listops

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.torch

DIM, WORDS, CLASSES = 12, 17, 10


def sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, count)
    return [(rng.integers(0, WORDS, n).tolist(), rng.integers(0, CLASSES, n).tolist()) for n in lengths]


def copy_weights(source, target):
    target.load_state_dict({name: value.detach().numpy() for name, value in source.state_dict().items()})


def compare(model, peer, steps, loss, peer_loss, tolerance):
    """Gradients of the first step, then losses and weights over ten updates."""
    optimizer = ln.optim.Adam(model.parameters(), lr=1e-2)
    peer_optimizer = torch.optim.Adam(peer.parameters(), lr=1e-2)
    graph = ln.Graph(dtype=model.parameters()[0].dtype)
    for step in range(steps):
        peer_optimizer.zero_grad()
        expected = peer_loss(step)
        expected.backward()
        with graph:
            value = loss(graph, step)
            graph.backward(value)
            np.testing.assert_allclose(value.item(), expected.item(), rtol=tolerance)
        if step == 0:
            wanted = {name: p.grad.numpy() for name, p in peer.named_parameters()}
            for name, parameter in model.named_parameters():
                scale = np.abs(wanted[name]).max() + 1e-3
                np.testing.assert_allclose(
                    np.array(parameter.grad),
                    wanted[name],
                    rtol=tolerance,
                    atol=tolerance * scale,
                    err_msg=name,
                )
        optimizer.step()
        peer_optimizer.step()
    wanted = peer.state_dict()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value, wanted[name].numpy(), rtol=50 * tolerance, atol=50 * tolerance, err_msg=name)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sequences(kind, dtype):
    options = {"num_layers": 2, "bidirectional": True}
    peer = getattr(torch.nn, kind)(DIM, 7, batch_first=True, dtype=getattr(torch, dtype), **options)
    model = getattr(ln.nn, kind)(DIM, 7, dtype=dtype, **options)
    copy_weights(peer, model)
    rng = np.random.default_rng(1)
    data = [rng.normal(size=(n, DIM)).astype(dtype) for n in (1, 5, 3, 8)]

    def loss(graph, step):
        return ln.sum([ln.sum(ln.square(model(graph.input(x))[0])) for x in data])

    def peer_loss(step):
        return sum((peer(torch.tensor(x)[None])[0] ** 2).sum() for x in data)

    compare(model, peer, 3, loss, peer_loss, 1e-4 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells(kind):
    peer = getattr(torch.nn, kind)(DIM, 7, dtype=torch.float64)
    model = getattr(ln.nn, kind)(DIM, 7, dtype="float64")
    copy_weights(peer, model)
    x = np.random.default_rng(0).normal(size=(3, DIM))

    def loss(graph, step):
        state = model(graph.input(x), model(graph.input(x * 2)))
        return ln.sum(ln.square(state[0] if kind == "LSTMCell" else state))

    def peer_loss(step):
        state = peer(torch.tensor(x), peer(torch.tensor(x * 2)))
        return ((state[0] if kind == "LSTMCell" else state) ** 2).sum()

    compare(model, peer, 3, loss, peer_loss, 1e-9)


class Tagger(ln.Module):
    def __init__(self, dtype):
        self.embed = ln.nn.Embedding(WORDS, DIM, sparse=False, dtype=dtype)
        self.lstm = ln.nn.LSTM(DIM, 8, bidirectional=True, dtype=dtype)
        self.hidden = ln.nn.Linear(16, 6, bias=False, dtype=dtype)
        self.out = ln.nn.Linear(6, CLASSES, dtype=dtype)

    def loss(self, graph, batch):
        losses = []
        for words, tags in batch:
            scores = self.out(ln.tanh(self.hidden(self.lstm(self.embed(graph, words))[0])))
            losses.append(ln.cross_entropy(scores, tags, reduction="sum"))
        return ln.sum(losses)


class TorchTagger(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, DIM, dtype=dtype)
        self.lstm = torch.nn.LSTM(DIM, 8, bidirectional=True, batch_first=True, dtype=dtype)
        self.hidden = torch.nn.Linear(16, 6, bias=False, dtype=dtype)
        self.out = torch.nn.Linear(6, CLASSES, dtype=dtype)

    def loss(self, batch):
        total = 0
        for words, tags in batch:
            scores = self.out(torch.tanh(self.hidden(self.lstm(self.embed(torch.tensor(words))[None])[0][0])))
            total = total + torch.nn.functional.cross_entropy(scores, torch.tensor(tags), reduction="sum")
        return total


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tagger(dtype):
    peer, model = TorchTagger(getattr(torch, dtype)), Tagger(dtype)
    copy_weights(peer, model)
    batches = [sentences(12, seed) for seed in range(10)]
    tolerance = 2e-4 if dtype == "float32" else 1e-9
    compare(model, peer, 10, lambda g, s: model.loss(g, batches[s]), lambda s: peer.loss(batches[s]), tolerance)


class TreeLSTM(ln.Module):
    def __init__(self, dtype):
        self.embed = ln.nn.Embedding(WORDS, DIM, sparse=False, dtype=dtype)
        self.cell = ln.nn.BinaryTreeLSTMCell(DIM, dtype=dtype)
        self.out = ln.nn.Linear(DIM, CLASSES, bias=False, dtype=dtype)

    def state(self, graph, tree, losses):
        if tree.is_leaf:
            state = self.cell.leaf(self.embed(graph, hash_word(tree.word)))
        else:
            state = self.cell(self.state(graph, tree.left, losses), self.state(graph, tree.right, losses))
        losses.append(ln.cross_entropy(self.out(state.h), max(tree.label, 0), reduction="sum"))
        return state

    def loss(self, graph, trees):
        losses = []
        for tree in trees:
            self.state(graph, tree, losses)
        return ln.sum(losses)


def hash_word(word):
    return sum(map(ord, word)) % WORDS


class TorchTreeLSTM(torch.nn.Module):
    """The same, a node at a time, with the equations written out."""

    def __init__(self, dtype):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, DIM, dtype=dtype)
        cell = torch.nn.Module()
        for name, shape in (
            ("leaf_weight", (3 * DIM, DIM)), ("inner_weight", (3 * DIM, 2 * DIM)), ("bias", (3 * DIM,)),
            ("forget_left", (DIM, DIM)), ("forget_right", (DIM, DIM)), ("forget_bias", (DIM,)),
        ):  # fmt: skip
            setattr(cell, name, torch.nn.Parameter(torch.randn(shape, dtype=dtype) * 0.3))
        self.cell = cell
        self.out = torch.nn.Linear(DIM, CLASSES, bias=False, dtype=dtype)

    def state(self, tree, losses):
        f, cell = torch.nn.functional, self.cell
        if tree.is_leaf:
            iou = f.linear(self.embed(torch.tensor([hash_word(tree.word)])), cell.leaf_weight, cell.bias)
            kept = 0
        else:
            (hl, cl), (hr, cr) = self.state(tree.left, losses), self.state(tree.right, losses)
            iou = f.linear(torch.cat([hl, hr], 1), cell.inner_weight, cell.bias)
            kept = torch.sigmoid(f.linear(hl, cell.forget_left, cell.forget_bias)) * cl
            kept = kept + torch.sigmoid(f.linear(hr, cell.forget_right, cell.forget_bias)) * cr
        i, o, u = iou.chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + kept
        h = torch.sigmoid(o) * torch.tanh(c)
        losses.append(f.cross_entropy(self.out(h), torch.tensor([max(tree.label, 0)])))
        return h, c

    def loss(self, trees):
        losses = []
        for tree in trees:
            self.state(tree, losses)
        return sum(losses)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tree_lstm(dtype):
    torch.manual_seed(0)
    peer, model = TorchTreeLSTM(getattr(torch, dtype)), TreeLSTM(dtype)
    copy_weights(peer, model)
    batches = [generate_listops(6, seed, max_depth=2) for seed in range(10)]
    tolerance = 2e-4 if dtype == "float32" else 1e-9
    compare(model, peer, 10, lambda g, s: model.loss(g, batches[s]), lambda s: peer.loss(batches[s]), tolerance)


OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"lr": 0.1, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_optimizers(name, options):
    start = np.random.default_rng(0).normal(size=(3, 4))
    peer = torch.nn.Parameter(torch.tensor(start))
    parameter = ln.Parameter(start, dtype="float64")
    peer_optimizer = getattr(torch.optim, name)([peer], **options)
    optimizer = getattr(ln.optim, name)([parameter], **options)
    graph = ln.Graph(dtype="float64")
    for step in range(6):
        peer_optimizer.zero_grad()
        ((peer - step) ** 2).sum().backward()
        peer_optimizer.step()
        with graph:
            graph.backward(ln.sum(ln.square(graph.parameter(parameter) - float(step))))
        optimizer.step()
    np.testing.assert_allclose(parameter.value, peer.detach().numpy(), rtol=1e-9)


def test_clipping_equals_torch():
    start = np.random.default_rng(0).normal(size=(3, 4))
    peer, parameter = torch.nn.Parameter(torch.tensor(start)), ln.Parameter(start, dtype="float64")
    ((peer * 3) ** 2).sum().backward()
    graph = ln.Graph(dtype="float64")
    graph.backward(ln.sum(ln.square(graph.parameter(parameter) * 3.0)))
    wanted = torch.nn.utils.clip_grad_norm_([peer], 1.0).item()
    np.testing.assert_allclose(ln.optim.clip_grad_norm([parameter], 1.0), wanted)
    np.testing.assert_allclose(parameter.grad, peer.grad.numpy(), rtol=1e-5)
