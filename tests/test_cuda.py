"""The CUDA backend: every kernel against the CPU's on ragged batches, whole models, arrays of other libraries.

The device is the emulated one; with ``-m gpu`` it is a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import lazynet as ln

from .emulated import library
from .operators import CASES, Case, targets_of

#: None, one, around a warp's 32 and several warps.
LENGTHS = (0, 1, 31, 32, 33, 100)
SCHEDULES = ("up", "down", "seed:7")


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> ln.Device:
    if request.param == "cuda" and not ln.cuda.is_available():
        pytest.skip("there is no GPU; it needs one, NVIDIA's driver and pip install 'lazynet[cuda13]'")
    return ln.device(request.param)


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest, device: ln.Device) -> Iterator[str]:
    """The order in which the emulator runs threads and blocks; one is enough for a GPU."""
    if device.name.startswith("cuda"):
        if request.param != SCHEDULES[0]:
            pytest.skip("only the emulator has schedules")
        yield request.param
        return
    emulator = ctypes.CDLL(str(library()))
    assert emulator.ln_emulator_set_schedule(request.param.encode()) == 0
    yield request.param
    emulator.ln_emulator_set_schedule(b"up")


# ---- what is compared

Shapes = tuple[tuple[int, int], ...]
BY_NAME = {case.name: case for case in CASES}


def ragged(case: str, /, *shapes: Callable[[int], Shapes], smallest: int = 0, **changes: object) -> Case:
    """A case of operators.py over all lengths."""
    sets = [make(length) for make in shapes for length in LENGTHS if length >= smallest]
    return replace(BY_NAME[case], shapes=sets, **changes)  # type: ignore[arg-type]


UNARY = [case.name for case in CASES if len(case.shapes[0]) == 1 and case.ops[0] in (case.name, "add_scalar", "copy")]
FLAT = [name for name in UNARY if BY_NAME[name].shapes == BY_NAME["neg"].shapes and not name.endswith("softmax")]
PAIRED = [case.name for case in CASES if case.shapes == BY_NAME["add"].shapes]


def rows(cols: int) -> Callable[[int], Shapes]:
    return lambda n: ((n, cols),)


def columns(count: int) -> Callable[[int], Shapes]:
    return lambda n: ((count, n),)


def pairs(a: tuple[int, int], b: tuple[int, int]) -> Callable[[int], Shapes]:
    """Two arguments; 0 stands for the length."""
    return lambda n: (tuple(x or n for x in a), tuple(x or n for x in b))  # type: ignore[return-value]


def attention_shapes(n: int) -> Shapes:
    return ((n, 8), (n, 8), (n, 6))


def with_memory(queries: int) -> Callable[[int], Shapes]:
    return lambda n: ((queries, 8), (n, 8), (n, 6))


def case_of(
    name: str, ops: tuple[str, ...], build: Callable[..., ln.Node], shapes: list[Shapes], **options: object
) -> Case:
    return Case(name, ops, build, lambda *arrays: np.zeros(0), shapes, **options)  # type: ignore[arg-type]


def uniform(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.uniform(-2, 2, shape)


def rounded(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Numbers of which many are equal."""
    return np.round(rng.uniform(-2, 2, shape), 1)


RAGGED = [
    *[ragged(name, rows(5), columns(3)) for name in ("tanh", "gelu", "log", "clip", "cube")],
    *[replace(BY_NAME[name], shapes=[((33, 5),), ((1, 128),), ((0, 4),)]) for name in FLAT],
    *[
        ragged(name, pairs((0, 5), (0, 5)), pairs((0, 5), (1, 5)), pairs((0, 5), (0, 1)), pairs((1, 1), (0, 5)),
               pairs((3, 0), (3, 0)), pairs((3, 0), (1, 0)), pairs((3, 1), (3, 0)), pairs((3, 0), (1, 1)))
        for name in ("add", "div")
    ],
    *[
        replace(BY_NAME[name], shapes=[((33, 5), (33, 5)), ((33, 5), (1, 5)), ((1, 40), (1, 1)), ((7, 1), (7, 40))])
        for name in PAIRED
    ],
    ragged("linear", lambda n: ((n, 33), (33, 40), (1, 40))),
    ragged("linear_transposed", lambda n: ((n, 33), (7, 33))),
    ragged("linear_node", lambda n: ((n, 33), (33, 4)), lambda n: ((3, n), (n, 5))),
    ragged("matmul", pairs((0, 7), (7, 5)), pairs((5, 0), (0, 3)), pairs((33, 7), (7, 0))),
    ragged("matmul_transpose_a", pairs((7, 0), (7, 5)), pairs((0, 33), (0, 3))),
    ragged("matmul_transpose_b", pairs((0, 7), (5, 7)), pairs((5, 0), (40, 0))),
    ragged("matmul_both", pairs((7, 0), (5, 7)), pairs((0, 33), (40, 0))),
    # Tiles of other sizes, and sums that are cuBLAS's.
    *[
        replace(BY_NAME["matmul_transpose_b"], name=f"matmul_{name}", shapes=[*shapes, ((1, 9), (2, 9))])
        for name, shapes in (
            ("tiles_of_64", [((61, 9), (63, 9))] * 150),
            ("tiles_of_32", [((31, 20), (30, 20))] * 100),
            ("long", [((3, 300), (5, 300))]),
        )
    ],
    *[
        case_of(
            f"lookup_{n}", ("lookup",), lambda g, t, n=n: ln.lookup(g, t, [(7 * i * i) % 50 for i in range(n)]),
            [((50, 33),)] * 3, shared=(0,),
        )
        for n in LENGTHS
    ],
    case_of(
        "lookup_node", ("lookup_ids",),
        lambda g, t: ln.lookup_node(t, g.input([[(7.0 * i * i) % 50 for i in range(100)]])), [((50, 33),)] * 2, shared=(0,),
    ),
    *[
        case_of(
            f"take_rows_{n}", ("take_rows",), lambda g, x, n=n: ln.take_rows(x, [(3 * i * i) % x.rows for i in range(n)]),
            [((length, 5),) for length in LENGTHS[1:]],
        )
        for n in (0, 40)
    ],
    ragged("reverse", rows(5), columns(3)),
    case_of(
        "take_cols", ("take_cols",),
        lambda g, x: ln.take_cols(x, g.input(np.array([[(3 * i * i) % x.cols for i in range(40)]] * x.rows).reshape(-1, 40))),
        [((length, 7),) for length in LENGTHS] + [((3, length),) for length in LENGTHS[1:]],
    ),
    ragged("top_k", columns(3), smallest=2),
    ragged("top_k", rows(9)),
    ragged("argmax", columns(3), rows(9), smallest=1),
    ragged("unfold", rows(5)),
    ragged("unfold_sparse", rows(5)),
    ragged("copy", rows(5)),
    ragged("transpose", rows(5), columns(40)),
    ragged("concat_cols", lambda n: ((3, n), (3, 1), (3, 2)), lambda n: ((n, 5), (n, 40))),
    ragged("concat_rows", lambda n: ((n, 4), (2, 4), (n, 4)), lambda n: ((2, n), (40, n))),
    ragged("reshape_view", lambda n: ((2 * n, 3),)),
    ragged("sum_nodes", lambda n: ((n, 3),) * 3, lambda n: ((2, n),) * 40),
    ragged("average", lambda n: ((n, 3),) * 2),
    *[
        ragged(f"{name}_{axis}", rows(5), columns(3), smallest=0 if name == "sum" else 1)
        for name in ("sum", "mean", "max", "min")
        for axis in (0, 1, None)
    ],
    case_of("sum_long", ("reduce_sum",), lambda g, x: ln.sum(x), [((300, 70),), ((1, 3),)]),
    ragged("softmax", rows(5), columns(3)),
    ragged("softmax_rows", rows(5), columns(3)),
    ragged("softmax_causal", lambda n: ((n, n),), rows(5), columns(7)),
    ragged("softmax_window", lambda n: ((n, n),), rows(5), columns(7)),
    ragged("log_softmax", rows(5), columns(3)),
    ragged("log_softmax_rows", rows(5), columns(3)),
    *[ragged(f"logsumexp_{axis}", rows(5), columns(3), smallest=1) for axis in (0, 1, None)],
    ragged("sparsemax", rows(5), columns(3), smallest=1),
    ragged("layer_norm_plain", rows(5), columns(3), smallest=1),
    ragged("layer_norm", lambda n: ((n, 33), (1, 33), (1, 33))),
    ragged("layer_norm", lambda n: ((n, 5), (1, 5), (1, 5)), name="layer_norm_short"),
    ragged("rms_norm_plain", rows(5), columns(3), smallest=1),
    ragged("rms_norm", lambda n: ((n, 33), (1, 33))),
    ragged("attention", attention_shapes, with_memory(5), lambda n: ((n, 3), (7, 3), (7, 65))),
    ragged("attention_heads", attention_shapes, with_memory(33)),
    ragged("attention_causal", attention_shapes, with_memory(5), lambda n: ((n, 8), (7, 8), (7, 6))),
    ragged("attention_window", attention_shapes, with_memory(33)),
    ragged("attention_bias", lambda n: ((n, 8), (n, 8), (n, 6), (n, n)), lambda n: ((3, 8), (n, 8), (n, 6), (6, n))),
    case_of(
        "attention_dropout", ("attention",), lambda g, q, k, v: ln.attention(q, k, v, 2, dropout=0.3),
        [attention_shapes(n) for n in LENGTHS],
    ),
    # Enough of them for large tiles; heads of any width; members of other shapes in one batch.
    case_of(
        "attention_large_tiles", ("attention",),
        lambda g, q, k, v, b: ln.attention(q, k, v, 8, bias=b, dropout=0.2, window=(90, 30)),
        [((130, 16), (120, 16), (120, 16), (130, 120))] * 18,
    ),
    case_of(
        "attention_widths", ("attention",), lambda g, q, k, v: ln.attention(q, k, v, dropout=0.3),
        [((5, 1), (7, 1), (7, 256)), ((40, 256), (33, 256), (33, 1)), ((33, 100), (35, 100), (35, 130)),
         ((3, 63), (2, 63), (2, 65))],
    ),
    case_of(
        "attention_hidden_rows", ("attention",),
        lambda g, q, k, v: ln.attention(q, k, v, 2, mask=np.arange(q.rows * k.rows).reshape(q.rows, -1) // 7 % 5 == 2),
        [((75, 6), (90, 6), (90, 6)), ((9, 8), (4, 8), (4, 2))],
    ),
    ragged("rotary", rows(8), rows(40)),
    ragged("rotary_interleaved", rows(8), rows(40)),
    ragged("crf_log_partition", lambda n: ((n, 3), (3, 3), (1, 3), (1, 3))),
    ragged("crf_log_partition", lambda n: ((n, 33), (33, 33), (1, 33), (1, 33)), name="crf_log_partition_wide"),
    ragged("crf_log_partition", lambda n: ((n, 100), (100, 100), (1, 100), (1, 100)), name="crf_log_partition_wider"),
    ragged("crf_best_path", lambda n: ((n, 100), (100, 100), (1, 100), (1, 100)), name="crf_best_path_wider"),
    ragged("crf_best_path", lambda n: ((n, 3), (3, 3), (1, 3), (1, 3))),
    ragged("linear_cross_entropy", lambda n: ((n, 4), (4, 6), (1, 6))),
    case_of(
        "linear_cross_entropy_wide", ("linear_cross_entropy",),
        lambda g, x, w, b: ln.linear_cross_entropy(x, w, targets_of(x, 100), b, ignore_index=1, label_smoothing=0.1),
        [((n, 33), (33, 100), (1, 100)) for n in LENGTHS[1:]], shared=(1, 2),
    ),
    case_of(
        "linear_cross_entropy_in_blocks", ("linear_cross_entropy",),
        lambda g, x, w, b: ln.linear_cross_entropy(x, w, targets_of(x, 66000), b, label_smoothing=0.1),
        [((n, 2), (2, 66000), (1, 66000)) for n in (1, 130)], shared=(1, 2),
    ),
    ragged("linear_cross_entropy_transposed", lambda n: ((n, 33), (6, 33))),
    ragged("cross_entropy", rows(5), smallest=0),
    ragged("cross_entropy", columns(3), smallest=1, name="cross_entropy_columns"),
    ragged("cross_entropy_smoothed", rows(5), smallest=0),
    ragged("cross_entropy_mean", rows(5), smallest=31),
    ragged("nll_loss", rows(5), smallest=0),
    ragged("nll_loss", columns(3), smallest=1, name="nll_loss_columns"),
    # Rows that a block does, not a warp, among short ones.
    *[
        replace(BY_NAME[name], name=f"{name}_long", shapes=[((3, 1500),), ((1, 1025),), ((2, 7),)])
        for name in (
            "softmax", "softmax_causal", "softmax_window", "log_softmax", "logsumexp_1", "logsumexp_None", "sparsemax",
            "cross_entropy", "cross_entropy_smoothed",
        )
    ],
    *[
        replace(BY_NAME[name], name=f"{name}_long", shapes=[((n, 1500), *((1, 1500),) * others) for n in (70, 1, 2)])
        for name, others in (("layer_norm_plain", 0), ("layer_norm", 2), ("rms_norm_plain", 0), ("rms_norm", 1))
    ],
    case_of("dropout", ("dropout",), lambda g, x: ln.dropout(x, 0.3), [((n, 5),) for n in LENGTHS]),
    # Several parts of a group, accesses of 16 bytes, and rows that are read again and again.
    case_of(
        "lookup_frequent", ("lookup",), lambda g, t: ln.lookup(g, t, [max(i - 150, 0) % 50 for i in range(170)]),
        [((50, 32),)] * 2, shared=(0,),
    ),
    case_of(
        "lookup_node_frequent", ("lookup_ids",),
        lambda g, t: ln.lookup_node(t, g.input([[float(max(i - 90, 0))] for i in range(99)])[1:]),
        [((50, 8),)] * 2, shared=(0,),
    ),
    case_of(
        "take_rows_frequent", ("take_rows",), lambda g, x: ln.take_rows(x, [i * i % 3 for i in range(200)]),
        [((length, 8),) for length in LENGTHS[2:]],
    ),
    case_of(
        "take_rows_of_views", ("take_rows",), lambda g, x: ln.take_rows(x[1:, 2:], [i * i % (x.rows - 1) for i in range(40)]),
        [((length, 7),) for length in LENGTHS[2:]],
    ),
    *[
        case_of(
            f"{name}_by_parts", (f"reduce_{name}",), lambda g, x, f=getattr(ln, name), axis=axis: f(x[:, 4:], axis=axis),
            shapes, draw=draw,
        )
        for name, draw in (("sum", uniform), ("mean", uniform), ("max", rounded), ("min", rounded))
        for axis, shapes in (
            (0, [((1100, 44),), ((3, 9),), ((513, 6),)]),
            (1, [((3, 17004),), ((40, 5),)]),
            (None, [((130, 144),), ((1, 9),), ((5, 8),)]),
        )
    ],
    case_of(
        "concat_packs", ("concat_cols",), lambda g, x, y: ln.concat([x, y[:, 4:], x]),
        [((n, 4), (n, 12)) for n in LENGTHS],
    ),
    case_of(
        "concat_large", ("concat_rows",), lambda g, x, y: ln.concat([x, y[:, 4:]], axis=0),
        [((9, 1000), (2, 1004)), ((1, 4), (1, 8))],
    ),
    case_of("transpose_vectors", ("transpose",), lambda g, x: x[:, 2:3].T, [((n, 5),) for n in LENGTHS]),
    case_of("transpose_views", ("transpose",), lambda g, x: x[:, 2:].T, [((n, 43),) for n in LENGTHS]),
    case_of("copy_views", ("copy",), lambda g, x: ln.copy(x[:, 4:]), [((n, 12),) for n in LENGTHS]),
    case_of("unfold_wide", ("unfold_rows",), lambda g, x: ln.unfold(x, 3, stride=1, padding=2), [((n, 70),) for n in LENGTHS]),
    case_of(
        "unfold_strides", ("unfold_rows",), lambda g, x: ln.unfold(x, 2, stride=3, dilation=2), [((n, 3),) for n in LENGTHS],
    ),
    case_of(
        "sum_packs", ("sum_nodes",), lambda g, x, y: ln.average([x, y[:, 4:], x]), [((n, 8), (n, 12)) for n in LENGTHS],
    ),
    case_of(
        "take_cols_repeated", ("take_cols",),
        lambda g, x: ln.take_cols(x, g.input([[float(i * i % 5) for i in range(100)]] * x.rows)), [((2, 5),), ((1, 70),)],
    ),
    # Gradients that share memory, which kernels of a device never see.
    case_of("same_twice", ("mul",), lambda g, x: x * x + x, [((n, 5),) for n in LENGTHS]),
    case_of("one_for_all", ("mul",), lambda g, x, b: x * b + b, [((n, 5), (1, 5)) for n in LENGTHS], shared=(1,)),
    case_of(
        "overlapping_views", ("add",), lambda g, x: ln.concat([x[:, 0:4] + x[:, 2:6], x[:, 1:5] * x[:, 1:5]]),
        [((n, 6),) for n in LENGTHS],
    ),
    case_of("list_repeats", ("concat_rows",), lambda g, x: ln.concat([x, x[1:], x], axis=0), [((n, 6),) for n in LENGTHS[1:]]),
]  # fmt: skip


class Run:
    """What a case gives on one device: values, and gradients of a loss that weighs every element differently."""

    def __init__(self, case: Case, where: str | ln.Device, dtype: str) -> None:
        rng = np.random.default_rng(0)
        graph = ln.Graph(dtype=dtype, device=where)
        sets = [[case.draw(rng, shape) for shape in shapes] for shapes in case.shapes]
        shared = {k: ln.Parameter(sets[0][k], dtype=dtype, device=where) for k in case.shared}
        inputs, results, losses = [], [], []
        for arrays in sets:
            arguments = [
                shared[k] if k in shared else graph.input(array, case.gradient) for k, array in enumerate(arrays)
            ]
            result = case.build(graph, *arguments)
            weights = 1 + np.arange(result.rows * result.cols).reshape(result.shape) % 7 / 7
            losses.append(ln.sum(result * weights))
            inputs += [node for node in arguments if isinstance(node, ln.Node)]
            results.append(result)
        loss = ln.sum(losses)
        graph.forward()
        self.values = [node.value for node in results]
        self.gradients: list[np.ndarray | None] = []
        if case.gradient:
            graph.backward(loss)
            self.gradients = [node.grad for node in inputs] + [parameter.grad for parameter in shared.values()]  # type: ignore[misc]


def assert_same(case: Case, device: ln.Device, dtype: str) -> None:
    expected, given = Run(case, "cpu", dtype), Run(case, device, dtype)
    tolerance = 1e-10 if dtype == "float64" else 2e-4
    for a, b in zip(expected.values + expected.gradients, given.values + given.gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * max(1.0, np.abs(a).max(initial=0)))


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_ragged_batches_equal_the_cpu(case: Case, device: ln.Device, schedule: str) -> None:
    assert_same(case, device, "float32")


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_ragged_batches_in_float64_equal_the_cpu(case: Case, device: ln.Device) -> None:
    assert_same(case, device, "float64")


def one_of_each_kernel() -> list[Case]:
    """Small cases that together launch every kernel once or a few times; elementwise operators share theirs."""
    chosen, seen = [], {case.ops[0] for case in CASES if case.name in (*FLAT, *PAIRED)} - {"tanh", "mul"}
    for case in CASES:
        if not set(case.ops) <= seen:
            chosen.append(replace(case, shapes=case.shapes[:2]))
            seen.update(case.ops)
    return chosen + [
        replace(case, shapes=case.shapes[1:2]) for case in RAGGED if case.name in ("dropout", "same_twice")
    ]


@pytest.mark.parametrize("case", one_of_each_kernel(), ids=str)
def test_tiny_launches(case: Case, device: ln.Device) -> None:
    """What a thread sanitizer can bear, see make cuda-test-thread."""
    assert_same(case, device, "float32")


def test_every_operator_is_covered() -> None:
    covered = {op for case in RAGGED for op in case.ops}
    assert {op for case in CASES for op in case.ops} <= covered | {"slice", "reshape", "stop_gradient", "constant"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 40, 300])
def test_the_largest_of_long_rows(device: ln.Device, count: int, dtype: str) -> None:
    """Of equals the first, NaN last; also where a few threads hold all that is wanted."""
    rng = np.random.default_rng(0)
    rows = [
        rng.normal(size=3000),
        np.round(rng.normal(size=3000)),
        np.zeros(3000),
        np.arange(3000.0),
        -np.arange(3000.0),
    ]
    rows.append(np.where(np.arange(3000) % 3 == 0, rng.normal(size=3000), np.nan))
    rows.append(np.full(3000, np.nan))
    rows.append(np.where(np.arange(3000) % 128 < 3, 9.0, 0.0) + rng.normal(size=3000))
    arrays = [np.array(rows), np.array([[1.0, np.inf, -np.inf] * 100]), rng.normal(size=(3, 300))]
    arrays.append(np.where(np.arange(20000) % 512 < 27, 9.0, 0.0)[None] + rng.normal(size=20000))
    results = []
    for where in ("cpu", device):
        graph = ln.Graph(dtype=dtype, device=where)
        nodes = [ln.top_k(graph.input(array), count)[1] for array in arrays]
        results.append([node.value for node in nodes])
    for expected, given in zip(*results, strict=True):
        np.testing.assert_array_equal(given, expected)


def test_gradients_of_sparse_tables(device: ln.Device) -> None:
    """More rows than a sparse gradient has room for at first, some of them often."""
    gradients = []
    for where in ("cpu", device):
        table = ln.Parameter(np.arange(800.0).reshape(200, 4), sparse=True, device=where)
        graph = ln.Graph(device=where)
        known = [ln.lookup(graph, table, [(i * i + k) % 150 for i in range(90 + k)]) for k in range(3)]
        computed = ln.lookup_node(table, graph.input([[float(7 * i % 200)] for i in range(150)] + [[5.0]] * 50))
        graph.backward(ln.sum([ln.sum(x * x) for x in [*known, computed]]))
        gradients.append(table.grad)
    for expected, given in zip(*gradients, strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-5)


@pytest.mark.parametrize("bad", [-1.0, 7.0, 1.5, np.nan])
def test_the_first_bad_id_is_told(device: ln.Device, schedule: str, bad: float) -> None:
    messages = []
    for where in ("cpu", device):
        table = ln.Parameter(np.ones((7, 4)), device=where)
        for build in (lambda x, ids: ln.lookup_node(table, ids), lambda x, ids: ln.take_cols(x, ids)):
            graph = ln.Graph(device=where)
            x = graph.input(np.ones((1, 7)))
            good = np.arange(40.0)[None] % 7
            nodes = [
                build(x, graph.input(np.where(np.arange(40) < n, good, bad * k))) for k, n in enumerate((40, 33, 2), 1)
            ]
            with pytest.raises(IndexError) as caught:
                graph.forward()
            messages.append(str(caught.value))
            assert nodes
    assert messages[:2] == messages[2:]
