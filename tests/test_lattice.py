"""Word lattices: their words, their places, and a lattice-LSTM over them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lazynet as ln
from lazynet import errors
from lazynet.data import Lexicon, Vocabulary, WordLattice

BRIDGE = "南京市长江大桥"
WORDS = ["南京", "南京市", "市长", "长江", "大桥", "长江大桥", "江", "北京", ""]
PARTS = {"南京": (0, 2), "南京市": (0, 3), "市长": (2, 4), "长江": (3, 5), "大桥": (5, 7), "长江大桥": (3, 7)}


def test_words_are_found():
    lattice = Lexicon(WORDS).lattice(BRIDGE)
    assert {word: (begin, end) for begin, end, word in lattice.words} == PARTS
    assert [span.end for span in lattice.words] == sorted(span.end for span in lattice.words)
    assert all(BRIDGE[span.begin : span.end] == span.word for span in lattice.words) and len(lattice) == 7
    assert Lexicon(Vocabulary(WORDS[:-1])).lattice(list(BRIDGE)).words == lattice.words
    assert Lexicon([]).lattice(BRIDGE).words == Lexicon(WORDS).lattice("").words == []


@given(st.text("ab", max_size=12), st.lists(st.text("ab", max_size=4)))
def test_exactly_the_words_of_the_lexicon(text, words):
    parts = [(begin, end) for end in range(len(text) + 1) for begin in range(end - 1) if text[begin:end] in words]
    assert [(begin, end) for begin, end, _ in Lexicon(words).lattice(text).words] == parts


@pytest.mark.parametrize("reverse", [False, True])
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=2, max_size=4)))
def test_places(reverse, text, words):
    lattice = Lexicon(words).lattice(text)
    structure, places = lattice.structure(reverse), lattice.places(reverse)
    rows, count = structure.rows.tolist(), len(text)
    below = [structure.children[a:b].tolist() for a, b in zip(structure.begin, structure.begin[1:], strict=False)]
    assert sorted(rows) == list(range(-1, count + len(lattice.words))) and rows[0] == -1 and below[0] == []
    assert [rows[place] for place in places] == list(range(count))
    assert places == sorted(places, reverse=reverse)
    place_of = {row: place for place, row in enumerate(rows)}
    for number, (begin, end, _) in enumerate(lattice.words):
        first, last = (end - 1, begin) if reverse else (begin, end - 1)
        assert below[place_of[count + number]] == [places[first]]
        assert place_of[count + number] in below[places[last]][2:]
    assert sum(len(below[place]) - 2 for place in places) == len(lattice.words)
    in_order = places[::-1] if reverse else places
    assert [below[place][:2] for place in in_order] == [[before, 0] for before in [0, *in_order[:-1]]] if text else True


class LatticeLSTM(ln.Module):
    """The equations of Zhang and Yang 2018 without biases, gates i, o, g of a character and i, f, g of a word."""

    def __init__(self, dim):
        ln.seed(0)
        self.character = ln.Parameter(np.random.default_rng(0).normal(size=(dim, 3 * dim)), dtype="float64")
        self.word = ln.Parameter(np.random.default_rng(1).normal(size=(dim, 3 * dim)), dtype="float64")
        self.link = ln.Parameter(np.random.default_rng(2).normal(size=(dim, dim)), dtype="float64")

    @ln.cell
    def step(self, row, states):
        if row is None:
            return states[0]
        h, c = states[0]
        if len(states) == 1:
            i, f, g = ln.split(row + ln.linear(h, self.word), 3)
            c = ln.sigmoid(f) * c + ln.sigmoid(i) * ln.tanh(g)
            return c, c
        i, o, g = ln.split(row + ln.linear(h, self.character), 3)
        words = [word[1] for word in states[2:]]
        if not words:
            i = ln.sigmoid(i)
            c = i * ln.tanh(g) + (1.0 - i) * c
        else:
            x = ln.slice_cols(row, 0, c.cols)
            gates = [ln.exp(ln.sigmoid(gate)) for gate in [i, *[x + ln.linear(word, self.link) for word in words]]]
            memories = [ln.tanh(g), *words]
            c = ln.sum([gate * memory for gate, memory in zip(gates, memories, strict=True)]) / ln.sum(gates)
        return ln.sigmoid(o) * ln.tanh(c), c


def by_hand(model, lattice, x, reverse):
    """h of every character, straight from the paper, by the spans and without the structure."""
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
    count, dim = len(lattice), model.link.shape[0]
    order = range(count)[::-1] if reverse else range(count)
    h = c = np.zeros(dim)
    hidden, memory = {}, {}
    for at in order:
        i, o, g = np.split(x[at] + h @ model.character.value, 3)
        gates, memories = [sigmoid(i)], [np.tanh(g)]
        for row, (begin, end, _) in enumerate(lattice.words, count):
            first, last = (end - 1, begin) if reverse else (begin, end - 1)
            if last == at:
                wi, wf, wg = np.split(x[row] + hidden[first] @ model.word.value, 3)
                memories.append(sigmoid(wf) * memory[first] + sigmoid(wi) * np.tanh(wg))
                gates.append(sigmoid(x[at][:dim] + memories[-1] @ model.link.value))
        if len(gates) == 1:
            c = gates[0] * memories[0] + (1 - gates[0]) * c
        else:
            c = np.sum(np.exp(gates) * memories, axis=0) / np.sum(np.exp(gates), axis=0)
        h = sigmoid(o) * np.tanh(c)
        hidden[at], memory[at] = h, c
    return [hidden[at] for at in range(count)]


@pytest.fixture(params=[True, False], ids=["cells", "nodes"])
def cells(request):
    before = ln.set_cells(request.param)
    yield
    ln.set_cells(before)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_lattice_lstm_over_it(cells, reverse):
    model, rng = LatticeLSTM(3), np.random.default_rng(3)
    lattices = [Lexicon(WORDS).lattice(text) for text in (BRIDGE, "长江大桥", "京")]
    inputs = [rng.normal(size=(len(lattice) + len(lattice.words), 9)) for lattice in lattices]
    graph = ln.Graph(dtype="float64")
    for _ in range(2):
        with graph:
            losses = []
            zero = graph.constant(0.0, 1, 3)
            for lattice, rows in zip(lattices, inputs, strict=True):
                structure = lattice.structure(reverse)
                states = ln.recur(model.step, structure, graph.input(rows), initial=(zero, zero))
                hidden = ln.concat([states[place][0] for place in lattice.places(reverse)], axis=0)
                losses.append(ln.sum(ln.square(hidden)))
                np.testing.assert_allclose(hidden.value, by_hand(model, lattice, rows, reverse), rtol=1e-10)
            model.zero_grad()
            graph.backward(ln.sum(losses))

    def loss(shift):
        model.word.value[...] = word + shift * direction
        found = [np.square(by_hand(model, *pair, reverse)).sum() for pair in zip(lattices, inputs, strict=True)]
        return sum(found)

    word, direction = model.word.value.copy(), rng.normal(size=model.word.shape)
    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    np.testing.assert_allclose((model.word.grad * direction).sum(), slope, rtol=1e-6)


def test_structures_are_kept():
    lattice = Lexicon(WORDS).lattice(BRIDGE)
    assert lattice.structure() is lattice.structure(reverse=False) is not lattice.structure(reverse=True)


@pytest.mark.parametrize("span", [(0, 1), (1, 1), (2, 1), (-1, 2), (2, 4)])
def test_mistakes(span):
    with pytest.raises(errors.NodeIndexError, match=r"lattice: 'w' spans .* at least two of the 3 are required"):
        WordLattice("abc", [(*span, "w")])
