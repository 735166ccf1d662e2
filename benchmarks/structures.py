"""Random structures, and small models over them whose batches are worth counting."""

import numpy as np

import lazynet as ln

DIM = 8


def lattice(rng, length, density=0.3, longest=4):
    """Words over the characters 0 to length - 1: for every position the start of a word that ends there, or -1.

    As in a lattice-LSTM for Chinese (Zhang and Yang 2018), a word begins after the character at its start and joins the
    chain of characters at its end.
    """
    starts = [-1] * length
    for end in range(2, length):
        if rng.random() < density:
            starts[end] = int(rng.integers(max(0, end - longest), end - 1))
    return starts


def tree(rng, leaves):
    """A random binary tree, as nested pairs; a leaf is None."""
    if leaves == 1:
        return None
    left = int(rng.integers(1, leaves))
    return tree(rng, left), tree(rng, leaves - left)


class Chains(ln.Module):
    """A recurrent step, and an output at every one of them."""

    def __init__(self):
        self.step, self.out = ln.nn.GRUCell(DIM, DIM), ln.nn.Linear(DIM, DIM)

    def loss(self, graph, rng):
        x, h = graph.constant(0.5, 1, DIM), graph.constant(0.0, 1, DIM)
        outputs = []
        for _ in range(int(rng.integers(3, 25))):
            h = self.step(x, h)
            outputs.append(ln.tanh(self.out(h)))
        return ln.sum(ln.sum(outputs), axis=None)


class Trees(ln.Module):
    """Two types of node: a cell for a pair of states, and an output for every state."""

    def __init__(self):
        self.pair, self.out = ln.nn.Linear(2 * DIM, DIM), ln.nn.Linear(DIM, DIM)

    @ln.cell
    def join(self, left, right):
        return ln.tanh(self.pair(ln.concat([left, right])))

    @ln.cell
    def output(self, state):
        return ln.sigmoid(self.out(state))

    def states(self, graph, node, outputs):
        if node is None:
            return graph.constant(0.5, 1, DIM)
        state = self.join(self.states(graph, node[0], outputs), self.states(graph, node[1], outputs))
        outputs.append(self.output(state))
        return state

    def nodes(self, graph, rng):
        outputs = []
        self.states(graph, tree(rng, int(rng.integers(2, 25))), outputs)
        return outputs

    def loss(self, graph, rng):
        return ln.sum(ln.sum(self.nodes(graph, rng)), axis=None)


class Lattices(ln.Module):
    """Two types of node: a cell for a character, which joins the one before it and a word, and one for a word."""

    def __init__(self):
        self.joined, self.single = ln.nn.Linear(2 * DIM, DIM), ln.nn.Linear(DIM, DIM)

    @ln.cell
    def character(self, before, word):
        return ln.tanh(self.joined(ln.concat([before, word])))

    @ln.cell
    def word(self, start):
        return ln.tanh(self.single(start))

    def nodes(self, graph, rng):
        states = [graph.constant(0.5, 1, DIM)]
        for start in lattice(rng, int(rng.integers(5, 30))):
            states.append(self.character(states[-1], states[-1] if start < 0 else self.word(states[start + 1])))
        return states[-1:]

    def loss(self, graph, rng):
        return ln.sum(self.nodes(graph, rng)[0], axis=None)


class Mixed(ln.Module):
    """Chains, trees and lattices side by side."""

    def __init__(self):
        self.models = [Chains(), Trees(), Lattices()]

    def loss(self, graph, rng):
        return ln.sum([model.loss(graph, rng) for model in self.models])


MODELS = {"chains": Chains, "trees": Trees, "lattices": Lattices, "mixed": Mixed}


def minibatch(model, graph, seed, size):
    """Builds a minibatch; returns what is to be computed."""
    rng = np.random.default_rng(seed)
    graph.clear()
    return ln.sum([model.loss(graph, rng) for _ in range(size)])
