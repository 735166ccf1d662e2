"""Dropout: rate, scale, seeds, gradients, independence of batching."""

import numpy as np

import lazynet as ln


def test_rate_scale_and_gradient():
    graph = ln.Graph(seed=3)
    x = graph.input(np.ones((100, 100)), requires_grad=True)
    y = ln.dropout(x, 0.3)
    graph.backward(ln.sum(y))
    kept = y.value != 0
    assert abs(kept.mean() - 0.7) < 0.02
    np.testing.assert_allclose(y.value[kept], 1 / 0.7, rtol=1e-6)
    np.testing.assert_array_equal(x.grad, y.value)


def test_seeds_work_and_nodes_differ():
    def masks(seed, policy="lookahead"):
        graph = ln.Graph(seed=seed, policy=policy)
        x = graph.input(np.ones((1, 64)))
        return [ln.dropout(x, 0.5).value for _ in range(3)]

    first, again, other = masks(1), masks(1, "none"), masks(2)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], other[0])


def test_off_when_not_training():
    graph = ln.Graph(train=False)
    x = graph.input([[1.0, 2.0]])
    assert ln.dropout(x, 0.9) is x
    layer = ln.nn.Dropout(0.9).eval()
    training = ln.Graph()
    y = training.input([[1.0]])
    assert layer(y) is y


def test_unequal_lengths_run_in_one_kernel():
    graph = ln.Graph()
    results = [ln.dropout(graph.input(np.ones((n, 3))), 0.5) for n in (1, 4, 0, 7)]
    graph.forward(*results)
    assert graph.statistics()["kernels_forward"] == 1


def test_the_random_state_goes_on_where_it_was():
    @ln.cell
    def cell(x):
        return ln.tanh(ln.dropout(x, 0.5))

    def masks(graph, count):
        result = []
        for _ in range(count):
            with graph:
                x = graph.input(np.ones((1, 64)))
                attended = ln.attention(x, ln.concat([x] * 9, axis=0), ln.reshape(x, -1, 1)[:9], dropout=0.5)
                result.append((cell(x), ln.nn.Dropout(0.3)(x), ln.dropout(x, 0.0), attended, ln.dropout(x, 0.5)))
                result[-1] = [part.value.tobytes() for part in result[-1]]
        return result

    whole, first, second = ln.Graph(seed=-3), ln.Graph(seed=-3), ln.Graph(eager=True)
    wanted = masks(whole, 5)
    assert masks(first, 2) == wanted[:2]
    second.set_seed(first.random_state)
    assert second.random_state == first.random_state
    assert masks(second, 3) == wanted[2:] and second.random_state == whole.random_state
