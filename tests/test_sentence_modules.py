"""Modules over sentences: gradients, batched against alone, and against their equations where PyTorch has none."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors

LENGTHS = (3, 0, 1, 6)
DIM = 4


def sentences(dim=DIM, lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, dim)) for n in lengths]


def weighted(node):
    return ln.sum(node * np.cos(np.arange(node.rows * node.cols)).reshape(node.shape))


MODULES = {
    "multihead": (ln.nn.MultiheadAttention(DIM, 2, dtype="float64"), lambda m, x, y: m(x, y, y)),
    "multihead rotary": (
        ln.nn.MultiheadAttention(DIM, 2, rotary_base=100.0, dtype="float64"),
        lambda m, x, y: m(x, is_causal=True),
    ),
    "encoder layer": (
        ln.nn.TransformerEncoderLayer(DIM, 2, 6, norm_first=True, dtype="float64"),
        lambda m, x, y: m(x, window=2),
    ),
    "decoder layer": (ln.nn.TransformerDecoderLayer(DIM, 1, 6, dtype="float64"), lambda m, x, y: m(x, y)),
    "dot": (ln.nn.DotAttention(), lambda m, x, y: m(x, y)),
    "bilinear": (ln.nn.BilinearAttention(DIM, DIM, dtype="float64"), lambda m, x, y: m(x, y)),
    "additive": (ln.nn.AdditiveAttention(DIM, DIM, 3, dtype="float64"), lambda m, x, y: m(x, y)),
    "convolutions": (ln.nn.ConvolutionalEncoder(DIM, 2, (2, 3), dtype="float64"), lambda m, x, y: m(x)),
    "crf": (ln.nn.CRF(DIM, dtype="float64"), lambda m, x, y: m.loss(x, [i % DIM for i in range(x.rows)])),
    "learned positions": (ln.nn.LearnedPositions(9, DIM, dtype="float64"), lambda m, x, y: m(x, 2)),
    "sinusoidal positions": (ln.nn.SinusoidalPositions(), lambda m, x, y: m(x, 2)),
    "rms norm": (ln.nn.RMSNorm(DIM, dtype="float64"), lambda m, x, y: m(x)),
}
NAMES = pytest.mark.parametrize("name", MODULES)


def losses(name, graph):
    module, apply = MODULES[name]
    module.eval()
    others = sentences(seed=1, lengths=LENGTHS[::-1])
    return [weighted(apply(module, graph.input(x), graph.input(y))) for x, y in zip(sentences(), others, strict=True)]


@NAMES
def test_gradients(name):
    parameters = MODULES[name][0].parameters()
    if parameters:
        ln.check_gradients(lambda graph: ln.sum(losses(name, graph)), parameters)


@NAMES
def test_together_as_alone(name):
    ln.check_batching(lambda graph: ln.sum(losses(name, graph)), MODULES[name][0].parameters())


@NAMES
def test_many_sentences_take_the_kernels_of_one(name):
    module, apply = MODULES[name]

    def kernels(copies):
        graph = ln.Graph(dtype="float64")
        for _ in range(copies):
            apply(module, graph.input(np.ones((3, DIM))), graph.input(np.ones((5, DIM))))
        graph.forward()
        return graph.statistics()["kernels_forward"]

    assert kernels(20) == kernels(1)


def test_additive_attention_is_its_equation():
    module = ln.nn.AdditiveAttention(3, 2, 5, dtype="float64")
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(4, 3)), rng.normal(size=(6, 2))
    hidden = np.tanh((q @ module.query.weight.value.T)[:, None] + k @ module.key.weight.value.T + module.key.bias.value)
    scores = np.exp(hidden @ module.weight.value[0])
    graph = ln.Graph(dtype="float64")
    expected = scores @ k / scores.sum(1, keepdims=True)
    np.testing.assert_allclose(module(graph.input(q), graph.input(k)).value, expected, rtol=1e-12)
    np.testing.assert_allclose(module(graph.input(q[:1]), graph.input(k)).value, expected[:1], rtol=1e-12)


def test_crf_is_a_distribution_and_decodes_its_best():
    crf = ln.nn.CRF(3, dtype="float64")
    for emissions in sentences(3):
        graph = ln.Graph(dtype="float64")
        node = graph.input(emissions)
        paths = list(itertools.product(range(3), repeat=min(len(emissions), 4)))
        node = node[:4] if len(emissions) > 4 else node
        probabilities = np.exp([-crf.loss(node, list(path)).item() for path in paths])
        assert probabilities.sum() == pytest.approx(1)
        assert tuple(crf.decode(node).value.astype(int).ravel()) == paths[int(probabilities.argmax())]
    with pytest.raises(errors.ShapeError, match="one a row is required"):
        crf.loss(node, [0])
    for tag in (3, -100):
        with pytest.raises(errors.NodeIndexError, match=f"tag {tag} of row 3"):
            crf.loss(node, [0] * (node.rows - 1) + [tag])


@pytest.mark.parametrize("rotary_base", [None, 10000.0])
def test_rows_one_by_one_are_the_rows_of_the_whole(rotary_base):
    layer = ln.nn.TransformerDecoderLayer(DIM, 2, 6, norm_first=True, rotary_base=rotary_base, dtype="float64")
    decoder = ln.nn.TransformerDecoder(layer, 2, ln.nn.LayerNorm(DIM, dtype="float64"))
    graph = ln.Graph(dtype="float64", train=False)
    memory, x = graph.input(sentences(lengths=[5])[0]), graph.input(sentences(lengths=[7])[0])
    whole = decoder(x, memory)
    rows, state = [], decoder.start(memory)
    for begin, end in ((0, 1), (1, 2), (2, 5), (5, 7)):
        row, state = decoder.extend(x[begin:end], state)
        rows.append(row)
    np.testing.assert_allclose(ln.concat(rows, axis=0).value, whole.value, rtol=1e-10)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_causal_encoder_goes_on_row_by_row(norm_first):
    layer = ln.nn.TransformerEncoderLayer(DIM, 2, 6, norm_first=norm_first, rotary_base=100.0, dtype="float64")
    encoder = ln.nn.TransformerEncoder(layer, 2, ln.nn.LayerNorm(DIM, dtype="float64"))
    graph = ln.Graph(dtype="float64", train=False)
    x = graph.input(sentences(lengths=[5])[0])
    rows, state = [], None
    for begin, end in ((0, 2), (2, 3), (3, 5)):
        row, state = encoder.extend(x[begin:end], state)
        rows.append(row)
    np.testing.assert_allclose(ln.concat(rows, axis=0).value, encoder(x, is_causal=True).value, rtol=1e-10)


def test_copies_of_a_layer_differ_and_pickle():
    encoder = ln.nn.TransformerEncoder(ln.nn.TransformerEncoderLayer(DIM, 2, 6), 2)
    first, second = (layer.linear1.weight.value for layer in encoder.layers)
    assert not np.array_equal(first, second)
    x = sentences(lengths=[4])[0]
    expected = encoder.eval()(ln.Graph().input(x)).value
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        np.testing.assert_array_equal(other(ln.Graph().input(x)).value, expected)


def test_stack_goes_back():
    stacks = ln.nn.StackLSTM(2, 3, dtype="float64")
    graph = ln.Graph(dtype="float64")
    empty = stacks.empty(graph)
    a, b, c = (graph.input(x) for x in np.random.default_rng(0).normal(size=(3, 1, 2)))
    one = empty.push(a, "a")
    straight, after = one.push(c), one.push(b).pop().push(c)
    np.testing.assert_array_equal(straight.h.value, after.h.value)
    assert one.item == "a" and len(after) == 2 and len(empty) == 0 and not empty.h.value.any()
    expected = ln.nn.LSTM(2, 3, dtype="float64")
    expected.load_state_dict({f"{n.removeprefix('cell.')}_l0": v for n, v in stacks.state_dict().items()})
    outputs, _ = expected([a, c])
    np.testing.assert_allclose(straight.h.value, outputs[-1].value, rtol=1e-12)
    with pytest.raises(errors.NodeValueError, match="empty stack"):
        empty.pop()


def test_documents_of_unequal_sentences():
    embed, words, rows = ln.nn.Embedding(9, 3), ln.nn.GRU(3, 4), ln.nn.GRU(4, 5)
    encoder = ln.nn.HierarchicalEncoder(
        lambda graph, sentence: ln.pool(words(embed(graph, sentence))[0], "last"), lambda x: rows(x)[1][0]
    )
    documents = [[[1, 2, 3], [4]], [[5], [6, 7], [8, 1, 2, 3]], [[]]]

    def loss(graph):
        return ln.sum([ln.sum(encoder(graph, document)) for document in documents])

    ln.check_batching(loss, [*embed.parameters(), *words.parameters(), *rows.parameters()])
    with pytest.raises(errors.NodeValueError, match="at least one"):
        encoder(ln.Graph(), [])


def test_pooling_of_nothing():
    graph = ln.Graph()
    nothing = graph.constant(1.0, 0, 3)
    for kind in ("sum", "mean", "max", "first", "last"):
        assert ln.pool(nothing, kind).value.tolist() == [[0, 0, 0]]
    assert ln.attention_pool(nothing, graph.constant(1.0, 0, 2)).value.tolist() == [[0, 0, 0]] * 2
    x = graph.input([[1.0, 5.0], [3.0, 2.0], [2.0, 2.0]])
    assert [ln.pool(x, kind).value.tolist()[0] for kind in ("first", "last", "max", "sum")] == [
        [1, 5], [2, 2], [3, 5], [6, 9],
    ]  # fmt: skip
    np.testing.assert_allclose(ln.attention_pool(x, graph.constant(0.0, 3, 1)).value, [[2, 3]], rtol=1e-6)
    with pytest.raises(errors.NodeValueError, match="one of sum, mean"):
        ln.pool(x, "median")
    with pytest.raises(errors.ShapeError, match="as many rows"):
        ln.attention_pool(x, x[:2])


def test_positions_end_and_heads_divide():
    x = ln.Graph().input(np.zeros((3, DIM)))
    with pytest.raises(errors.ShapeError, match="position 9"):
        ln.nn.LearnedPositions(9, DIM)(x, 7)
    with pytest.raises(errors.NodeValueError, match="divides embed_dim"):
        ln.nn.MultiheadAttention(DIM, 3)
    with pytest.raises(errors.NodeValueError, match="'relu', 'gelu'"):
        ln.nn.TransformerEncoderLayer(DIM, 2, activation="swish")
    far = ln.nn.SinusoidalPositions()(x, 5000).value
    np.testing.assert_allclose(far[0], [np.sin(5000), np.cos(5000), np.sin(50), np.cos(50)], atol=1e-4)
