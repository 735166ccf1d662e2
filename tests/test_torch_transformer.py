"""Attention, Transformers and convolution against PyTorch, which pads and masks: values and gradients."""

import numpy as np
import pytest

import lazynet as ln

from .test_torch import copy_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.torch

DIM, HEADS = 12, 3
DTYPES = pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 2e-4)])


class Sentences:
    """Sentences of unequal lengths as arrays, and padded for PyTorch."""

    def __init__(self, lengths, dtype, seed=0, dim=DIM):
        rng = np.random.default_rng(seed)
        self.arrays = [rng.normal(size=(n, dim)).astype(dtype) for n in lengths]
        self.padded = torch.zeros(len(lengths), max(lengths), dim, dtype=getattr(torch, dtype))
        for row, array in enumerate(self.arrays):
            self.padded[row, : len(array)] = torch.from_numpy(array)
        self.padded.requires_grad_(True)
        self.hidden = torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]

    def nodes(self, graph):
        return [graph.input(array, requires_grad=True) for array in self.arrays]


def compare(model, peer, groups, results, expected, dtype, tolerance):
    """Results sentence by sentence, then all gradients of a loss that weighs every element differently."""
    graph = results[0].graph
    losses, wanted_loss = [], 0
    for row, result in enumerate(results):
        wanted = expected[row, : result.rows]
        np.testing.assert_allclose(result.value, wanted.detach().numpy(), rtol=tolerance, atol=tolerance)
        weights = np.cos(np.arange(result.rows * result.cols).reshape(result.shape)).astype(dtype)
        losses.append(ln.sum(result * weights))
        wanted_loss = wanted_loss + (wanted * torch.from_numpy(weights)).sum()
    wanted_loss.backward()
    graph.backward(ln.sum(losses))
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in peer.named_parameters():
        scale = max(parameter.grad.abs().max().item(), 1)
        np.testing.assert_allclose(
            gradients[name], parameter.grad, rtol=tolerance, atol=tolerance * scale, err_msg=name
        )
    for sentences, nodes in groups:
        for row, node in enumerate(nodes):
            np.testing.assert_allclose(
                node.grad, sentences.padded.grad[row, : node.rows], rtol=tolerance, atol=10 * tolerance
            )


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention(dtype, tolerance, causal):
    peer = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=getattr(torch, dtype))
    model = ln.nn.MultiheadAttention(DIM, HEADS, dtype=dtype)
    copy_weights(peer, model)
    x = Sentences([5, 1, 37], dtype)
    mask = torch.triu(torch.ones(37, 37, dtype=torch.bool), 1) if causal else None
    expected, _ = peer(x.padded, x.padded, x.padded, key_padding_mask=x.hidden, attn_mask=mask)
    nodes = x.nodes(ln.Graph(dtype=dtype))
    results = [model(node, node, node, is_causal=causal) for node in nodes]
    compare(model, peer, [(x, nodes)], results, expected, dtype, tolerance)


@DTYPES
@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 5}, {"bias": False}])
def test_cross_attention(dtype, tolerance, sizes):
    peer = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=getattr(torch, dtype), **sizes)
    model = ln.nn.MultiheadAttention(DIM, HEADS, dtype=dtype, **sizes)
    copy_weights(peer, model)
    q, k = Sentences([5, 1, 9], dtype), Sentences([2, 8, 4], dtype, 1, sizes.get("kdim", DIM))
    v = Sentences([2, 8, 4], dtype, 2, sizes.get("vdim", DIM))
    expected, _ = peer(q.padded, k.padded, v.padded, key_padding_mask=k.hidden)
    graph = ln.Graph(dtype=dtype)
    groups = [(each, each.nodes(graph)) for each in (q, k, v)]
    results = [model(*nodes) for nodes in zip(*[nodes for _, nodes in groups], strict=True)]
    compare(model, peer, groups, results, expected, dtype, tolerance)


@DTYPES
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder(dtype, tolerance, norm_first, activation):
    options = {"dropout": 0.0, "norm_first": norm_first, "activation": activation}
    kind = getattr(torch, dtype)
    layer = torch.nn.TransformerEncoderLayer(DIM, HEADS, 20, batch_first=True, dtype=kind, **options)
    peer = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(DIM, dtype=kind), enable_nested_tensor=False)
    own = ln.nn.TransformerEncoderLayer(DIM, HEADS, 20, dtype=dtype, **options)
    model = ln.nn.TransformerEncoder(own, 2, ln.nn.LayerNorm(DIM, dtype=dtype))
    copy_weights(peer, model)
    x = Sentences([5, 1, 9], dtype)
    expected = peer(x.padded, src_key_padding_mask=x.hidden)
    nodes = x.nodes(ln.Graph(dtype=dtype))
    compare(model, peer, [(x, nodes)], [model(node) for node in nodes], expected, dtype, tolerance)


@DTYPES
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("bias", [False, True])
def test_transformer(dtype, tolerance, norm_first, bias):
    options = {"dropout": 0.0, "norm_first": norm_first, "bias": bias}
    peer = torch.nn.Transformer(DIM, HEADS, 2, 2, 20, batch_first=True, dtype=getattr(torch, dtype), **options)
    model = ln.nn.Transformer(DIM, HEADS, 2, 2, 20, dtype=dtype, **options)
    copy_weights(peer, model)
    source, target = Sentences([5, 1, 9], dtype), Sentences([2, 8, 4], dtype, 1)
    hidden = torch.triu(torch.ones(8, 8, dtype=torch.bool), 1)
    expected = peer(
        source.padded, target.padded, tgt_mask=hidden, src_key_padding_mask=source.hidden,
        memory_key_padding_mask=source.hidden, tgt_key_padding_mask=target.hidden,
    )  # fmt: skip
    graph = ln.Graph(dtype=dtype)
    left, right = source.nodes(graph), target.nodes(graph)
    results = [model(*pair) for pair in zip(left, right, strict=True)]
    compare(model, peer, [(source, left), (target, right)], results, expected, dtype, tolerance)


@DTYPES
@pytest.mark.parametrize("options", [{}, {"padding": 2}, {"stride": 2, "dilation": 2, "padding": 1, "bias": False}])
def test_convolution(dtype, tolerance, options):
    peer = torch.nn.Conv1d(DIM, 5, 3, dtype=getattr(torch, dtype), **options)
    model = ln.nn.Conv1d(DIM, 5, 3, dtype=dtype, **options)
    copy_weights(peer, model)
    x = Sentences([6, 6, 6], dtype)
    expected = peer(x.padded.transpose(1, 2)).transpose(1, 2)
    nodes = x.nodes(ln.Graph(dtype=dtype))
    results = [model(node) for node in nodes]
    assert all(result.rows == expected.shape[1] for result in results)
    compare(model, peer, [(x, nodes)], results, expected, dtype, tolerance)


def test_an_update_of_a_convolution_changes_all_weights():
    model = ln.nn.Conv1d(2, 3, 4)
    before = model.state_dict()["weight"]
    graph = ln.Graph()
    graph.backward(ln.sum(model(graph.input(np.ones((9, 2))))))
    ln.optim.Adam(model.parameters(), lr=0.1).step()
    assert before.shape == (3, 2, 4) and (model.weight.value != before).all()
