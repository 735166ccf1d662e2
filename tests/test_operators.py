"""Every operator against NumPy and finite differences, alone and in a batch of unequal shapes."""

import numpy as np
import pytest

import lazynet as ln
from lazynet import nodes
from lazynet._core import lib
from lazynet.nodes import opdef

from .operators import CASES, ELSEWHERE, Case

STRIDES = pytest.mark.parametrize("strided", [False, True], ids=["whole", "view"])


def arguments_for(case: Case, seed: int = 0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    sets = [[case.draw(rng, shape) for shape in shapes] for shapes in case.shapes]
    for arrays in sets:
        for k in case.shared:
            arrays[k] = sets[0][k]
    return sets


class Built:
    """A case built in a graph for some of its argument sets, with a loss that weighs every element differently."""

    def __init__(self, case, sets, shared, dtype, strided=False, **options):
        self.graph = ln.Graph(dtype=dtype, **options)
        self.inputs, self.results = [], []
        losses = []
        for arrays in sets:
            inputs = [shared[k] if k in shared else self.argument(array, strided) for k, array in enumerate(arrays)]
            result = case.build(self.graph, *inputs)
            self.inputs.append(inputs)
            self.results.append(result)
            weights = 1 + 0.1 * np.arange(result.shape[0] * result.shape[1]).reshape(result.shape)
            losses.append(ln.sum(result * weights))
        self.loss = ln.sum(losses)

    def argument(self, array, strided):
        """The node of an argument: an input, or a view of the middle columns of a wider one."""
        if not strided:
            return self.graph.input(array, requires_grad=True)
        wide = np.pad(array, ((0, 0), (2, 1)), constant_values=9.0)
        return self.graph.input(wide, requires_grad=True)[:, 2 : 2 + array.shape[1]]

    def gradients(self, shared):
        self.graph.backward(self.loss)
        own = [[None if k in shared else node.grad for k, node in enumerate(nodes)] for nodes in self.inputs]
        return own, {k: dense(parameter) for k, parameter in shared.items()}


def dense(parameter):
    gradient = parameter.grad
    result = np.zeros(parameter.shape) if gradient is None else np.array(gradient)
    parameter.zero_grad()
    return result


def shared_of(case, sets, dtype):
    return {k: ln.Parameter(sets[0][k], dtype=dtype) for k in case.shared}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@STRIDES
def test_value(case, dtype, strided):
    sets = arguments_for(case)
    built = Built(case, sets, shared_of(case, sets, dtype), dtype, strided)
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    for arrays, result in zip(sets, built.results, strict=True):
        expected = case.reference(*arrays)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result.value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", [case for case in CASES if case.gradient], ids=str)
def test_gradient_alone(case):
    sets = arguments_for(case)
    for arrays in sets:
        shared = shared_of(case, [arrays], "float64")
        own, shared_gradients = Built(case, [arrays], shared, "float64").gradients(shared)

        def loss(values, shared=shared):
            value = case.reference(*values)
            weights = 1 + 0.1 * np.arange(value.size).reshape(value.shape)
            return float((value * weights).sum())

        for k, array in enumerate(arrays):
            gradient = shared_gradients[k] if k in shared else own[0][k]
            gradient = np.zeros(array.shape) if gradient is None else gradient
            numeric = np.zeros_like(array)
            for index in np.ndindex(array.shape):
                step = np.zeros_like(array)
                step[index] = 1e-6
                above = loss([a + step if j == k else a for j, a in enumerate(arrays)])
                below = loss([a - step if j == k else a for j, a in enumerate(arrays)])
                numeric[index] = (above - below) / 2e-6
            np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
@STRIDES
def test_batch_of_unequal_shapes(case, strided):
    sets = arguments_for(case) + arguments_for(case, seed=1)
    for arrays in sets:
        for k in case.shared:
            arrays[k] = sets[0][k]
    shared = shared_of(case, sets, "float64")
    together = Built(case, sets, shared, "float64", strided)
    own, summed = together.gradients(shared)
    expected = dict.fromkeys(shared, 0.0)
    for number, arrays in enumerate(sets):
        alone = Built(case, [arrays], shared, "float64", strided, policy="none")
        alone_own, alone_shared = alone.gradients(shared)
        np.testing.assert_allclose(together.results[number].value, alone.results[0].value, rtol=1e-12, atol=1e-12)
        for a, b in zip(own[number], alone_own[0], strict=True):
            if b is not None:
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
        for k in shared:
            expected[k] = expected[k] + alone_shared[k]
    for k in shared:
        np.testing.assert_allclose(summed[k], expected[k], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "linear_node"], ids=str)
def test_64_examples_take_the_kernels_of_one(case):
    def kernels(copies):
        arrays = arguments_for(case)[0]
        shared = shared_of(case, [arrays], "float32")
        graph = ln.Graph()
        results = []
        for _ in range(copies):
            inputs = [shared[k] if k in shared else graph.input(a, True) for k, a in enumerate(arrays)]
            results.append(case.build(graph, *inputs))
        graph.forward(*results)
        return graph.statistics()["kernels_forward"]

    assert kernels(64) == kernels(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vector_units_and_threads_agree(case):
    sets = arguments_for(case) * 3
    unit, threads = ln.vector_unit(), ln.num_threads()

    def run():
        shared = shared_of(case, sets, "float32")
        built = Built(case, sets, shared, "float32")
        own, summed = built.gradients(shared)
        return (
            [r.value for r in built.results] + [g for each in own for g in each if g is not None] + [*summed.values()]
        )

    expected = run()
    try:
        for name in (b"portable", b"baseline", b"avx2", b"avx512"):
            if lib.ln_set_vector_unit(name) == 0:
                for a, b in zip(run(), expected, strict=True):
                    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
        lib.ln_set_vector_unit(unit.encode())
        for count in (1, 2, 3):
            ln.set_num_threads(count)
            first = run()
            for a, b in zip(run(), first, strict=True):
                np.testing.assert_array_equal(a, b)
            for a, b in zip(first, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    finally:
        lib.ln_set_vector_unit(unit.encode())
        ln.set_num_threads(threads)


def test_rows_functions_and_references_agree():
    covered = {op for case in CASES for op in case.ops} | ELSEWHERE
    # A cell is made of other operators; tests/test_cells.py compares it with them.
    assert covered == set(opdef.OPS) - {"cell"}, "every operator of the table needs a case in tests/operators.py"
    assert set(opdef.OPS) - {"cell"} == opdef.BUILT, "every operator of the table needs a function in lazynet/nodes"
    public = {name for family in nodes.FAMILIES for name in family.__all__}
    assert all(getattr(ln, name).__doc__ for name in public)
    assert {op.family for op in opdef.OPS.values() if op.kind == "kernel"} <= {
        "elementwise", "linear", "embedding", "shape", "reduce", "softmax", "dropout", "normalization", "loss", "cell",
        "attention", "convolution", "crf", "search",
    }  # fmt: skip


def test_attributes_stay_apart():
    graph = ln.Graph()
    x = graph.input([[0.0, 0.0]])
    assert [n.value.tolist() for n in (x + 1.1, x + 1.2, x + 1.3)] == [
        np.float32([[v, v]]).tolist() for v in (1.1, 1.2, 1.3)
    ]
    y = graph.input([[-1.0, 2.0]])
    pairs = [
        (ln.leaky_relu(y, 0.1), ln.leaky_relu(y, 0.2)),
        (ln.elu(y, 1.0), ln.elu(y, 2.0)),
        (ln.clip(y, -0.5, 1), ln.clip(y, -0.5, 1.5)),
        (y**2.0, y**3.0),
        (2.0**y, 3.0**y),
        (y * 2.0, y * 3.0),
        (ln.sum(y.T, 0), ln.sum(y.T, 1)),
        (graph.constant(1.0, 1, 2), graph.constant(2.0, 1, 2)),
        (ln.layer_norm(y, eps=1e-5), ln.layer_norm(y, eps=1.0)),
        (ln.cross_entropy(y, 0), ln.cross_entropy(y, 0, label_smoothing=0.5)),
        (ln.huber_error(y, 0.0, 0.5), ln.huber_error(y, 0.0, 1.5)),
    ]
    graph.forward()
    for a, b in pairs:
        assert a.shape != b.shape or not np.array_equal(a.value, b.value)


@pytest.mark.parametrize("rows, inner", [(1, 1024), (7, 1024), (300, 2048), (40, 3072)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_rows_that_lie_pages_apart(rows, inner, dtype):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(rows, inner)), rng.normal(size=(37, inner))
    weight, bias = ln.Parameter(w, dtype=dtype), ln.Parameter(rng.normal(size=(1, 37)), dtype=dtype)
    graph = ln.Graph(dtype=dtype)
    node = graph.input(x, requires_grad=True)
    y = ln.linear(node, weight, bias, transpose=True)
    tolerance = 1e-9 if dtype == "float64" else 2e-3
    np.testing.assert_allclose(y.value, x @ w.T + bias.value, rtol=tolerance, atol=tolerance)
    graph.backward(ln.sum(ln.linear(ln.linear(y, weight), weight, transpose=True)))
    np.testing.assert_allclose(node.grad, np.ones((rows, 37)) @ w @ w.T @ w, rtol=tolerance, atol=50 * tolerance)
