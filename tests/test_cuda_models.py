"""Whole models on the emulated device: ten steps of training with the CPU's losses, launches a step, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lazynet as ln
from lazynet.data import Tree

from .test_decode import BEGIN, END, same, sources_of
from .test_decode import Translator as DecodedTranslator

CLASSES, WORDS, DIM = 5, 40, 16


@pytest.fixture
def device() -> ln.Device:
    return ln.device("emulated")


def random_tree(rng: np.random.Generator, leaves: int) -> Tree:
    label = int(rng.integers(CLASSES))
    if leaves == 1:
        return Tree(label, word=int(rng.integers(WORDS)))
    left = int(rng.integers(1, leaves))
    return Tree(label, left=random_tree(rng, left), right=random_tree(rng, leaves - left))


class TreeModel(ln.Module):
    """The tree-LSTM of the demo: a loss at every node."""

    def __init__(self) -> None:
        self.embed = ln.nn.Embedding(WORDS, DIM)
        self.cell = ln.nn.BinaryTreeLSTMCell(DIM)
        self.out = ln.nn.Linear(DIM, CLASSES)

    def state(self, graph: ln.Graph, tree: Any, losses: list[ln.Node]) -> Any:
        if tree.is_leaf:
            state = self.cell.leaf(self.embed(graph, tree.word))
        else:
            state = self.cell(self.state(graph, tree.left, losses), self.state(graph, tree.right, losses))
        losses.append(ln.cross_entropy(self.out(state.h), tree.label, reduction="sum"))
        return state

    def loss(self, graph: ln.Graph, batch: list[Any]) -> ln.Node:
        losses: list[ln.Node] = []
        for tree in batch:
            self.state(graph, tree, losses)
        return ln.sum(losses)


class Translator(ln.Module):
    """A small Transformer with dropout, over pairs of sentences of unequal lengths."""

    def __init__(self) -> None:
        self.source, self.target = ln.nn.Embedding(WORDS, DIM), ln.nn.Embedding(WORDS, DIM)
        self.positions, self.dropout = ln.nn.SinusoidalPositions(), ln.nn.Dropout(0.1)
        self.transformer = ln.nn.Transformer(DIM, 4, 1, 1, 2 * DIM, 0.1)
        self.out = ln.nn.Linear(DIM, WORDS)

    def loss(self, graph: ln.Graph, batch: list[Any]) -> ln.Node:
        losses = []
        for source, target in batch:
            hidden = self.transformer(
                self.dropout(self.positions(self.source(graph, source))),
                self.dropout(self.positions(self.target(graph, target[:-1]))),
            )
            losses.append(
                ln.linear_cross_entropy(
                    hidden, self.out.weight, target[1:], self.out.bias, transpose=True, reduction="sum"
                )
            )
        return ln.sum(losses)


class Tagger(ln.Module):
    """A bidirectional LSTM and a conditional random field."""

    def __init__(self) -> None:
        self.embed = ln.nn.Embedding(WORDS, DIM)
        self.lstm = ln.nn.LSTM(DIM, DIM, bidirectional=True)
        self.out, self.crf = ln.nn.Linear(2 * DIM, CLASSES), ln.nn.CRF(CLASSES)

    def loss(self, graph: ln.Graph, batch: list[Any]) -> ln.Node:
        losses = []
        for words, tags in batch:
            hidden, _ = self.lstm(self.embed(graph, words))
            losses.append(self.crf.loss(self.out(hidden), tags))
        return ln.sum(losses)


def trees(rng: np.random.Generator) -> list[Any]:
    return [random_tree(rng, int(rng.integers(1, 9))) for _ in range(6)]


def pairs(rng: np.random.Generator) -> list[Any]:
    def sentence() -> list[int]:
        return rng.integers(WORDS, size=int(rng.integers(2, 9))).tolist()

    return [(sentence(), sentence()) for _ in range(4)]


def tagged(rng: np.random.Generator) -> list[Any]:
    sizes = rng.integers(1, 9, size=5)
    return [(rng.integers(WORDS, size=n).tolist(), rng.integers(CLASSES, size=n).tolist()) for n in sizes]


def train(
    model_class: type[Any], batches: Callable[..., list[Any]], where: Any, steps: int = 10
) -> tuple[list[float], Any]:
    ln.seed(1)
    model = model_class()
    model.to(where)
    optimizer = ln.optim.Adam(model.parameters(), 0.01)
    graph, rng, losses = ln.Graph(device=where, seed=3), np.random.default_rng(2), []
    for _ in range(steps):
        with graph:
            loss = model.loss(graph, batches(rng))
            graph.backward(loss)
            losses.append(loss.item())
        optimizer.step(max_norm=5.0)
    return losses, model


MODELS = [(TreeModel, trees), (Translator, pairs), (Tagger, tagged)]


@pytest.mark.parametrize(("model", "batches"), MODELS, ids=["tree", "transformer", "tagger"])
def test_ten_steps_have_the_losses_of_the_cpu(device: ln.Device, model: type[Any], batches: Any) -> None:
    expected, _ = train(model, batches, "cpu")
    given, trained = train(model, batches, device)
    np.testing.assert_allclose(given, expected, rtol=2e-3)
    assert all(np.isfinite(value).all() for value in trained.state_dict().values())


@pytest.mark.parametrize(("model", "batches"), MODELS, ids=["tree", "transformer", "tagger"])
def test_two_runs_give_the_same_bits(device: ln.Device, model: type[Any], batches: Any) -> None:
    first, one = train(model, batches, device, 3)
    second, other = train(model, batches, device, 3)
    assert first == second
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_launches_do_not_grow_with_the_examples(device: ln.Device) -> None:
    """A minibatch of the same tree many times takes the launches of one."""
    ln.seed(1)
    model = TreeModel()
    model.to(device)
    tree = random_tree(np.random.default_rng(0), 8)

    def launches(copies: int) -> int:
        graph = ln.Graph(device=device)
        before = device.statistics().launches
        graph.backward(model.loss(graph, [tree] * copies))
        device.synchronize()
        return device.statistics().launches - before

    launches(1)
    # The sum over all losses may take another kernel, and long sums a second stage.
    assert launches(32) <= launches(1) + 8


def test_decoding_follows_the_model_to_its_device(device: ln.Device) -> None:
    ln.seed(3)
    model = DecodedTranslator()
    sources = sources_of(4)
    expected = ln.decode.beam_search(model, sources, beam=3, best=2, begin=BEGIN, end=END, max_length=6)
    model.to(device)
    same(ln.decode.beam_search(model, sources, beam=3, best=2, begin=BEGIN, end=END, max_length=6), expected, 1e-4)
