"""Cells on a CUDA device: chains of elementwise operations, whose kernels are written at run time, against the CPU.

Gradients that share memory, rows that lie anywhere, sums over rows, and columns of every alignment.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import lazynet as ln

from .test_cuda import device  # noqa: F401  (a fixture)

Nodes = list[ln.Node]


class Weights(ln.Module):
    def __init__(self, cols: int, dtype: str, where: str | ln.Device) -> None:
        rng = np.random.default_rng(1)
        draw = lambda *shape: ln.Parameter(rng.normal(0, 0.5, shape), dtype=dtype, device=where)  # noqa: E731
        self.square, self.row, self.number = draw(2 * cols, cols), draw(cols), draw(1)


def lstm(w: Weights, x: ln.Node, y: ln.Node) -> ln.Node:
    z = ln.linear(x, w.square, transpose=True)
    return ln.sigmoid(z[:, : x.cols]) * ln.tanh(y) + ln.tanh(z[:, x.cols :]) * x


def overlapping_slices(w: Weights, x: ln.Node, y: ln.Node) -> ln.Node:
    """Of a value of the cell, and of its inputs."""
    z = ln.linear(x, w.square, transpose=True)
    inside = ln.sigmoid(z[:, : x.cols]) * ln.tanh(z[:, 1 : x.cols + 1]) * z[:, 2 : x.cols + 2]
    return inside[:, 1:] * y[:, 1:] + x[:, 1:] * x[:, :-1] * y[:, :-1]


def sums_over_rows(w: Weights, x: ln.Node, y: ln.Node) -> ln.Node:
    return x * ln.sum(ln.tanh(y), axis=1) + ln.exp(-ln.square(y)) * w.number + y[:, 1:2] * x[:, :1]


def parameters(w: Weights, x: ln.Node, y: ln.Node) -> ln.Node:
    return ln.gelu(x * w.row + y) * w.number - ln.maximum(y, w.row)


def one_column(w: Weights, x: ln.Node, y: ln.Node) -> ln.Node:
    return ln.tanh(x[:, :1]) * y[:, 1:2] + ln.sigmoid(x[:, :1])


def long_chain(w: Weights, x: ln.Node, y: ln.Node) -> ln.Node:
    for k in range(12):
        x, y = y + ln.tanh(x) * (0.1 * k), ln.sigmoid(x * w.row) - y * 0.5
    return x * y


CELLS = [lstm, overlapping_slices, sums_over_rows, parameters, one_column, long_chain]


def apart(graph: ln.Graph, call: Callable[..., ln.Node], leaves: Nodes) -> Nodes:
    """Calls that share nothing, some without gradients."""
    return [call(x, y) for x, y in zip(leaves[::2], leaves[1::2], strict=True)]


def chained(graph: ln.Graph, call: Callable[..., ln.Node], leaves: Nodes) -> Nodes:
    """Results are inputs of the next call, of the same one twice."""
    results = apart(graph, call, leaves)
    return results + [
        call(node, node) if node.shape == leaf.shape else node for node, leaf in zip(results, leaves[::2], strict=True)
    ]


def one_for_all(graph: ln.Graph, call: Callable[..., ln.Node], leaves: Nodes) -> Nodes:
    """An input that all calls of equal rows share, and one of them in two places."""
    first = {leaf.rows: leaf for leaf in leaves}
    return [call(x, first[x.rows]) for x in leaves]


def views(graph: ln.Graph, call: Callable[..., ln.Node], leaves: Nodes) -> Nodes:
    """Slices of rows of one node, some of which overlap."""
    pairs = zip(leaves[::2], leaves[1::2], strict=True)
    return [call(x[i : i + 1], y[i : i + 1]) for x, y in pairs for i in (0, 0, x.rows - 1)]


LINKS = [apart, chained, one_for_all, views]


def run(
    cell: Callable[..., ln.Node], link: Callable[..., Nodes], cols: int, dtype: str, where: str | ln.Device
) -> list[np.ndarray]:
    class Model(ln.Module):
        def __init__(self) -> None:
            self.weights = Weights(cols, dtype, where)

        @ln.cell
        def forward(self, x: ln.Node, y: ln.Node) -> ln.Node:
            return cell(self.weights, x, y)

    model, rng = Model(), np.random.default_rng(2)
    found: list[np.ndarray] = []
    for _ in range(2):  # the second time with gradients added to those of parameters
        graph = ln.Graph(dtype=dtype, device=where)
        lengths = (1, 3, 2, 1, 1, 40)
        leaves = [
            graph.input(rng.normal(size=(n, cols)), requires_grad=k % 5 != 3)
            for k, n in enumerate(n for n in lengths for _ in "xy")
        ]
        results = link(graph, model.forward, leaves)
        weights = [1 + np.arange(node.rows * node.cols).reshape(node.shape) % 7 / 7 for node in results]
        loss = ln.sum([ln.sum(node * weight) for node, weight in zip(results, weights, strict=True)])
        graph.backward(loss)
        found += [node.value for node in results]
        found += [leaf.grad for k, leaf in enumerate(leaves) if k % 5 != 3]  # type: ignore[misc]
        found += [np.array(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    return found


@pytest.mark.parametrize("cols", [8, 7])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("cell", CELLS)
def test_cells_equal_those_on_the_cpu(
    cell: Callable[..., ln.Node],
    link: Callable[..., Nodes],
    cols: int,
    device: ln.Device,  # noqa: F811
) -> None:
    for dtype in ("float64", "float32") if link is apart else ("float64",):
        expected, given = run(cell, link, cols, dtype, "cpu"), run(cell, link, cols, dtype, device)
        tolerance = 1e-10 if dtype == "float64" else 2e-4
        assert len(expected) == len(given)
        for a, b in zip(expected, given, strict=True):
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
