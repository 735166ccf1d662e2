"""The one table of operator cases: how nodes are built, what NumPy gives, which arguments. test_operators.py runs it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lazynet as ln

Array = np.ndarray


@dataclass
class Case:
    """One operator: ``build(graph, arguments)`` makes the node from nodes, ``reference`` the value from arrays.

    ``shapes``: argument shapes, several sets; ``shared``: which arguments are parameters, the same for all sets (and
    so of one shape); ``draw``: how argument numbers are drawn, so that kinks and ties stay out of the way.
    """

    name: str
    ops: tuple[str, ...]
    build: Callable[..., ln.Node]
    reference: Callable[..., Array]
    shapes: list[tuple[tuple[int, int], ...]]
    shared: tuple[int, ...] = ()
    draw: Callable[[np.random.Generator, tuple[int, int]], Array] = field(
        default=lambda rng, shape: rng.uniform(-2, 2, shape)
    )
    gradient: bool = True

    def __str__(self) -> str:
        return self.name


def positive(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.uniform(0.3, 2, shape)


def distinct(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """No two elements near each other, none near 0 or a clip bound."""
    count = shape[0] * shape[1]
    return (rng.permutation(count).reshape(shape) - count / 2 + 0.37) * (4 / max(count, 1))


def probabilities(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    x = rng.uniform(0.2, 1, shape)
    return x / x.sum(1, keepdims=True)


ONE = [((1, 4),), ((3, 5),), ((7, 1),), ((0, 4),), ((2, 128),)]
PAIRS = [
    ((1, 4), (1, 4)), ((3, 5), (3, 5)), ((3, 5), (1, 5)), ((3, 5), (3, 1)), ((3, 5), (1, 1)), ((1, 5), (3, 5)),
    ((3, 1), (3, 5)), ((1, 1), (2, 2)), ((1, 5), (3, 1)), ((0, 3), (1, 3)),
]  # fmt: skip
CRF = ((3, 3), (1, 3), (1, 3))
SAME = [((1, 4), (1, 4)), ((3, 5), (3, 5)), ((2, 1), (2, 1))]


def softmax(x: Array, axis: int = 1) -> Array:
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def lse(x: Array, axis: Any) -> Array:
    return np.log(np.exp(x).sum(axis, keepdims=True)).reshape({0: (1, -1), 1: (-1, 1), None: (1, 1)}[axis])


def sparsemax(x: Array) -> Array:
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        z = np.sort(row)[::-1]
        k = np.arange(1, len(z) + 1)
        size = k[1 + k * z > np.cumsum(z)].max()
        out[i] = np.maximum(row - (z[:size].sum() - 1) / size, 0)
    return out


erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def layer_norm(x: Array, w: Any = 1.0, b: Any = 0.0) -> Array:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b


def targets_of(x: ln.Node | Array, classes: int) -> list[int]:
    return [(3 * i + 1) % classes for i in range(x.shape[0])]


def targets(x: ln.Node | Array) -> list[int]:
    return targets_of(x, x.shape[1])


def cross_entropy(x: Array, smoothing: float = 0.0, ignore: int | None = None) -> Array:
    p = np.log(softmax(x))
    chosen = -p[np.arange(len(x)), targets(x)]
    loss = (1 - smoothing) * chosen - smoothing * p.mean(1)
    return np.where(np.array(targets(x)) == ignore, 0, loss).reshape(-1, 1)


def rms_norm(x: Array, w: Any = 1.0) -> Array:
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * w


def visible(queries: int, keys: int, before: float, after: float) -> Array:
    """Which keys a query sees; the last query has the position of the last key."""
    distance = np.arange(keys)[None] - (np.arange(queries)[:, None] + keys - queries)
    return (-before <= distance) & (distance <= after)


def masked_softmax(x: Array, seen: Array) -> Array:
    if x.size == 0:
        return x
    e = np.where(seen, np.exp(x - x.max(1, keepdims=True)), 0)
    total = e.sum(1, keepdims=True)
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0)


def attention(
    q: Array, k: Array, v: Array, bias: Any = None, heads: int = 1, scale: Any = None, before: float = math.inf,
    after: float = math.inf,
) -> Array:  # fmt: skip
    n, m = len(q), len(k)
    d, e = q.shape[1] // heads, v.shape[1] // heads
    out = []
    for h in range(heads):
        scores = q[:, h * d : h * d + d] @ k[:, h * d : h * d + d].T * (1 / math.sqrt(d) if scale is None else scale)
        if bias is not None:
            scores = scores + (bias if len(bias) == n else bias[h * n : h * n + n])
        out.append(masked_softmax(scores, visible(n, m, before, after)) @ v[:, h * e : h * e + e])
    return np.concatenate(out, 1)


def rotary(x: Array, heads: int, start: int, interleaved: bool) -> Array:
    n, d = len(x), x.shape[1] // heads
    angle = (start + np.arange(n))[:, None] * 10000.0 ** (-2 * np.arange(d // 2) / d)[None]
    y = x.reshape(n, heads, d // 2, 2) if interleaved else x.reshape(n, heads, 2, d // 2).swapaxes(2, 3)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = y[..., 0], y[..., 1]
    y = np.stack([a * c - b * s, a * s + b * c], -1)
    return (y if interleaved else y.swapaxes(2, 3)).reshape(n, heads * d)


def unfold(x: Array, width: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> Array:
    padded = np.pad(x, ((padding, padding), (0, 0)))
    reach = dilation * (width - 1) + 1
    starts = range(0, len(padded) - reach + 1, stride)
    places = [padded[i : i + reach : dilation].T.reshape(1, -1) for i in starts]
    return np.concatenate(places) if places else np.zeros((0, width * x.shape[1]))


def paths(emissions: Array, transitions: Array, start: Array, end: Array) -> dict[tuple[int, ...], float]:
    """The score of every tag sequence."""
    length, tags = emissions.shape
    scores = {}
    for path in itertools.product(range(tags), repeat=length):
        score = sum(emissions[t, tag] for t, tag in enumerate(path))
        score += sum(transitions[a, b] for a, b in itertools.pairwise(path))
        scores[path] = score + (start[0, path[0]] + end[0, path[-1]] if path else 0)
    return scores


def crf_log_partition(*arguments: Array) -> Array:
    return np.log(np.sum(np.exp(list(paths(*arguments).values())))).reshape(1, 1)


def crf_best_path(*arguments: Array) -> Array:
    scores = paths(*arguments)
    return np.array(max(scores, key=scores.__getitem__), float).reshape(-1, 1)


def unary(name: str, reference: Callable[[Array], Array], draw: Any = None, ops: Any = None, build: Any = None) -> Case:
    options = {"draw": draw} if draw else {}
    function = build or (lambda graph, x: getattr(ln, name)(x))
    return Case(name, (ops or name,), function, reference, ONE, **options)


def binary(name: str, reference: Any, draw: Any = None, build: Any = None, shapes: Any = PAIRS) -> Case:
    options = {"draw": draw} if draw else {}
    return Case(name, (name,), build or (lambda g, a, b: getattr(ln, name)(a, b)), reference, shapes, **options)


CASES = [
    unary("neg", lambda x: -x),
    unary("abs", np.abs, distinct),
    unary("square", np.square),
    unary("sqrt", np.sqrt, positive),
    unary("exp", np.exp),
    unary("log", np.log, positive),
    unary("sin", np.sin),
    unary("cos", np.cos),
    unary("erf", erf),
    unary("tanh", np.tanh),
    unary("sigmoid", sigmoid),
    unary("relu", lambda x: np.maximum(x, 0), distinct),
    unary("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x), distinct),
    unary("elu", lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)), distinct, build=lambda g, x: ln.elu(x, 1.5)),
    unary("gelu", lambda x: x * (1 + erf(x / math.sqrt(2))) / 2),
    unary(
        "gelu_tanh",
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        build=lambda g, x: ln.gelu(x, "tanh"),
    ),
    unary("silu", lambda x: x * sigmoid(x)),
    unary("softplus", lambda x: np.log1p(np.exp(x))),
    unary("clip", lambda x: np.clip(x, -0.5, 0.7), distinct, build=lambda g, x: ln.clip(x, -0.5, 0.7)),
    unary("add_scalar", lambda x: x + 1.5, build=lambda g, x: x + 1.5),
    unary("sub_number", lambda x: x - 1.5, ops="add_scalar", build=lambda g, x: x - 1.5),
    unary("mul_scalar", lambda x: x * -2.5, build=lambda g, x: -2.5 * x),
    unary("div_number", lambda x: x / 2.5, ops="mul_scalar", build=lambda g, x: x / 2.5),
    unary("rsub_scalar", lambda x: 3 - x, build=lambda g, x: 3 - x),
    unary("rdiv_scalar", lambda x: 3 / x, positive, build=lambda g, x: 3 / x),
    unary("pow_scalar", lambda x: x**2.5, positive, build=lambda g, x: x**2.5),
    unary("cube", lambda x: x**3, ops="pow_scalar", build=lambda g, x: x**3),
    unary("rpow_scalar", lambda x: 1.7**x, build=lambda g, x: 1.7**x),
    binary("add", np.add),
    binary("sub", np.subtract),
    binary("mul", np.multiply),
    binary("div", np.divide, positive),
    binary("pow", np.power, positive),
    binary("minimum", np.minimum),
    binary("maximum", np.maximum),
    binary("squared_error", lambda a, b: (a - b) ** 2),
    binary("absolute_error", lambda a, b: np.abs(a - b)),
    binary("huber_error", lambda a, b: np.where(np.abs(a - b) <= 1, (a - b) ** 2 / 2, np.abs(a - b) - 0.5)),
    binary("binary_cross_entropy_error", lambda a, b: np.log1p(np.exp(a)) - a * b),
    binary("hinge_error", lambda a, b: np.maximum(1 - a * b, 0)),
    binary("kl_error", lambda a, b: b * (np.log(b) - a), positive),
    Case(
        "linear", ("linear",), lambda g, x, w, b: ln.linear(x, w, b), lambda x, w, b: x @ w + b,
        [((1, 4), (4, 6), (1, 6)), ((3, 4), (4, 6), (1, 6)), ((0, 4), (4, 6), (1, 6))], shared=(1, 2),
    ),
    Case(
        "linear_transposed", ("linear",), lambda g, x, w: ln.linear(x, w, transpose=True), lambda x, w: x @ w.T,
        [((1, 4), (6, 4)), ((5, 4), (6, 4))], shared=(1,),
    ),
    Case(
        "linear_node", ("linear",), lambda g, x, w: ln.linear(x, w), lambda x, w: x @ w,
        [((1, 4), (4, 6)), ((3, 2), (2, 5))],
    ),
    Case(
        "matmul", ("matmul",), lambda g, a, b: ln.matmul(a, b), lambda a, b: a @ b,
        [((1, 4), (4, 3)), ((5, 2), (2, 1)), ((2, 3), (3, 2)), ((0, 2), (2, 3)), ((2, 0), (0, 3))],
    ),
    Case(
        "matmul_transpose_a", ("matmul",), lambda g, a, b: ln.matmul(a, b, transpose_a=True), lambda a, b: a.T @ b,
        [((4, 1), (4, 3)), ((2, 5), (2, 1))],
    ),
    Case(
        "matmul_transpose_b", ("matmul",), lambda g, a, b: ln.matmul(a, b, transpose_b=True), lambda a, b: a @ b.T,
        [((1, 4), (3, 4)), ((5, 2), (1, 2))],
    ),
    Case(
        "matmul_both", ("matmul",), lambda g, a, b: ln.matmul(a, b, True, True), lambda a, b: a.T @ b.T,
        [((4, 1), (3, 4)), ((2, 5), (1, 2))],
    ),
    Case(
        "lookup", ("lookup",), lambda g, t: ln.lookup(g, t, [3, 0, 3]), lambda t: t[[3, 0, 3]], [((5, 4),)], shared=(0,),
    ),
    Case("lookup_one", ("lookup",), lambda g, t: ln.lookup(g, t, 2), lambda t: t[[2]], [((5, 4),)], shared=(0,)),
    Case("constant", ("constant",), lambda g, x: x * g.constant(2.5, 1, 4), lambda x: x * 2.5, [((1, 4),), ((3, 4),)]),
    Case(
        "take_rows", ("take_rows",), lambda g, x: ln.take_rows(x, [2, 0, 2]), lambda x: x[[2, 0, 2]],
        [((3, 4),), ((5, 2),)],
    ),
    Case("reverse", ("take_rows",), lambda g, x: ln.reverse(x), lambda x: x[::-1], ONE),
    Case(
        "take_cols", ("take_cols",), lambda g, x: ln.take_cols(x, g.input(np.array([[2, 0, 2]] * x.rows).reshape(-1, 3))),
        lambda x: x[:, [2, 0, 2]], [((3, 4),), ((1, 3),), ((0, 3),)],
    ),
    Case(
        "top_k", ("top_ids", "take_cols"), lambda g, x: ln.top_k(x, 2)[0], lambda x: -np.sort(-x, 1)[:, :2],
        [((3, 4),), ((1, 2),), ((0, 3),), ((2, 70),)], draw=distinct,
    ),
    Case(
        "argmax", ("top_ids",), lambda g, x: ln.argmax(x), lambda x: x.argmax(1).reshape(-1, 1).astype(float),
        [((3, 4),), ((1, 2),), ((2, 70),)], draw=distinct, gradient=False,
    ),
    Case(
        "lookup_node", ("lookup_ids",), lambda g, t: ln.lookup_node(t, g.input([[3.0, 0.0], [3.0, 1.0]])),
        lambda t: t[[3, 0, 3, 1]], [((5, 4),)], shared=(0,),
    ),
    Case("unfold", ("unfold_rows",), lambda g, x: ln.unfold(x, 2), lambda x: unfold(x, 2), ONE),
    Case(
        "unfold_sparse", ("unfold_rows",), lambda g, x: ln.unfold(x, 3, stride=2, padding=2, dilation=2),
        lambda x: unfold(x, 3, 2, 2, 2), [((1, 4),), ((6, 2),), ((9, 1),), ((0, 3),)],
    ),
    Case("copy", ("copy",), lambda g, x: ln.copy(x), lambda x: x, ONE),
    Case("transpose", ("transpose",), lambda g, x: x.T, lambda x: x.T, ONE),
    Case("transpose_function", ("transpose",), lambda g, x: ln.transpose(x), lambda x: x.T, ONE),
    Case(
        "concat_cols", ("concat_cols",), lambda g, *x: ln.concat(list(x)), lambda *x: np.concatenate(x, 1),
        [((1, 4), (1, 2)), ((3, 5), (3, 1), (3, 2)), ((0, 2), (0, 3))],
    ),
    Case(
        "concat_rows", ("concat_rows",), lambda g, *x: ln.concat(list(x), axis=0), lambda *x: np.concatenate(x, 0),
        [((1, 4), (2, 4)), ((3, 4),), ((0, 4), (1, 4), (2, 4))],
    ),
    Case("slice_rows", ("slice",), lambda g, x: ln.slice_rows(x, 1, 3), lambda x: x[1:3], [((3, 4),), ((5, 2),)]),
    Case("slice_cols", ("slice",), lambda g, x: ln.slice_cols(x, 1, 3), lambda x: x[:, 1:3], [((3, 4),), ((1, 5),)]),
    Case("index", ("slice",), lambda g, x: x[-1, 1:], lambda x: x[-1:, 1:], [((3, 4),), ((1, 5),)]),
    Case("split", ("slice",), lambda g, x: ln.split(x, 2)[1], lambda x: x[:, 2:], [((3, 4),), ((1, 4),)]),
    Case("split_rows", ("slice",), lambda g, x: ln.split(x, [1, 2], 0)[1], lambda x: x[1:], [((3, 4),)]),
    Case("reshape", ("reshape",), lambda g, x: ln.reshape(x, 2, -1), lambda x: x.reshape(2, -1), [((4, 3),), ((1, 6),)]),
    Case(
        "reshape_view", ("copy",), lambda g, x: ln.reshape(x[:, 1:], 2, -1), lambda x: x[:, 1:].reshape(2, -1),
        [((4, 3),), ((2, 5),)],
    ),
    Case("stop_gradient", ("stop_gradient",), lambda g, x: x * ln.stop_gradient(x), lambda x: x * x, ONE, gradient=False),
    Case("sum_nodes", ("sum_nodes",), lambda g, *x: ln.sum(list(x)), lambda *x: sum(x), [((2, 3),) * 3, ((1, 1),) * 5]),
    Case(
        "average", ("sum_nodes",), lambda g, *x: ln.average(list(x)), lambda *x: sum(x) / len(x),
        [((2, 3),) * 3, ((1, 4),) * 2],
    ),
    *[
        Case(
            f"{name}_{axis}", (f"reduce_{name}",), lambda g, x, f=getattr(ln, name), a=axis: f(x, a),
            lambda x, f=reference, a=axis: np.asarray(f(x, a)).reshape({0: (1, -1), 1: (-1, 1), None: (1, 1)}[a]),
            [((1, 4),), ((3, 5),), ((6, 1),), ((2, 70),)], draw=distinct,
        )
        for name, reference in (("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min))
        for axis in (0, 1, None)
    ],
    Case("softmax", ("softmax",), lambda g, x: ln.softmax(x), softmax, ONE),
    Case("softmax_rows", ("softmax",), lambda g, x: ln.softmax(x, 0), lambda x: softmax(x, 0), ONE[:3]),
    Case(
        "softmax_causal", ("softmax",), lambda g, x: ln.softmax(x, causal=True),
        lambda x: masked_softmax(x, visible(*x.shape, math.inf, 0)), [((4, 4),), ((2, 5),), ((5, 2),), ((0, 3),)],
    ),
    Case(
        "softmax_window", ("softmax",), lambda g, x: ln.softmax(x, window=(1, 2)),
        lambda x: masked_softmax(x, visible(*x.shape, 1, 2)), [((4, 4),), ((2, 6),), ((9, 2),)],
    ),
    Case("log_softmax", ("log_softmax",), lambda g, x: ln.log_softmax(x), lambda x: np.log(softmax(x)), ONE),
    Case("log_softmax_rows", ("log_softmax",), lambda g, x: ln.log_softmax(x, 0), lambda x: np.log(softmax(x, 0)), ONE[:3]),
    *[
        Case(f"logsumexp_{a}", ("logsumexp",), lambda g, x, a=a: ln.logsumexp(x, a), lambda x, a=a: lse(x, a), ONE[:3])
        for a in (0, 1, None)
    ],
    Case("sparsemax", ("sparsemax",), lambda g, x: ln.sparsemax(x), sparsemax, [((1, 4),), ((3, 5),)]),
    Case("layer_norm_plain", ("layer_norm",), lambda g, x: ln.layer_norm(x), layer_norm, [((1, 4),), ((3, 5),)]),
    Case(
        "layer_norm", ("layer_norm",), lambda g, x, w, b: ln.layer_norm(x, w, b), layer_norm,
        [((1, 5), (1, 5), (1, 5)), ((3, 5), (1, 5), (1, 5))], shared=(1, 2),
    ),
    Case("rms_norm_plain", ("rms_norm",), lambda g, x: ln.rms_norm(x), rms_norm, [((1, 4),), ((3, 5),)]),
    Case(
        "rms_norm", ("rms_norm",), lambda g, x, w: ln.rms_norm(x, w), rms_norm,
        [((1, 5), (1, 5)), ((3, 5), (1, 5))], shared=(1,),
    ),
    Case(
        "attention", ("attention",), lambda g, q, k, v: ln.attention(q, k, v), attention,
        [((3, 4), (5, 4), (5, 6)), ((1, 2), (1, 2), (1, 2)), ((2, 3), (0, 3), (0, 2)), ((0, 3), (2, 3), (2, 2)),
         ((35, 2), (3, 2), (3, 1))],
    ),
    Case(
        "attention_heads", ("attention",), lambda g, q, k, v: ln.attention(q, k, v, 2, scale=0.7),
        lambda q, k, v: attention(q, k, v, heads=2, scale=0.7),
        [((3, 4), (5, 4), (5, 6)), ((1, 2), (4, 2), (4, 2)), ((2, 2), (131, 2), (131, 2))],
    ),
    Case(
        "attention_causal", ("attention",), lambda g, q, k, v: ln.attention(q, k, v, causal=True),
        lambda q, k, v: attention(q, k, v, after=0),
        [((4, 4), (4, 4), (4, 2)), ((2, 2), (5, 2), (5, 2)), ((5, 3), (2, 3), (2, 1)), ((34, 1), (34, 1), (34, 1))],
    ),
    Case(
        "attention_window", ("attention",), lambda g, q, k, v: ln.attention(q, k, v, 2, window=(2, 1)),
        lambda q, k, v: attention(q, k, v, heads=2, before=2, after=1),
        [((4, 4), (4, 4), (4, 2)), ((2, 2), (6, 2), (6, 2)), ((7, 2), (2, 2), (2, 2)), ((34, 2), (140, 2), (140, 2))],
    ),
    Case(
        "attention_bias", ("attention",), lambda g, q, k, v, b: ln.attention(q, k, v, 2, bias=b),
        lambda q, k, v, b: attention(q, k, v, b, heads=2),
        [((3, 4), (5, 4), (5, 2), (3, 5)), ((2, 2), (3, 2), (3, 2), (4, 3))],
    ),
    Case(
        "rotary", ("rotary",), lambda g, x: ln.rotary(x, 2, start=3), lambda x: rotary(x, 2, 3, False),
        [((3, 8),), ((1, 4),), ((0, 4),)],
    ),
    Case(
        "rotary_interleaved", ("rotary",), lambda g, x: ln.rotary(x, interleaved=True),
        lambda x: rotary(x, 1, 0, True), [((3, 8),), ((5, 2),)],
    ),
    Case(
        "crf_log_partition", ("crf_log_partition",), lambda g, *x: ln.crf_log_partition(*x), crf_log_partition,
        [((3, 3), *CRF), ((1, 3), *CRF), ((5, 3), *CRF),
         ((0, 3), *CRF)], shared=(1, 2, 3),
    ),
    Case(
        "crf_best_path", ("crf_best_path",), lambda g, *x: ln.crf_best_path(*x), crf_best_path,
        [((3, 3), *CRF), ((1, 3), *CRF), ((5, 3), *CRF),
         ((0, 3), *CRF)], shared=(1, 2, 3), gradient=False,
    ),
    Case(
        "linear_cross_entropy", ("linear_cross_entropy",),
        lambda g, x, w, b: ln.linear_cross_entropy(x, w, targets_of(x, 6), b, reduction="none"),
        lambda x, w, b: cross_entropy(x @ w + b), [((3, 4), (4, 6), (1, 6)), ((1, 4), (4, 6), (1, 6)),
         ((0, 4), (4, 6), (1, 6)), ((130, 4), (4, 6), (1, 6))], shared=(1, 2),
    ),
    Case(
        "linear_cross_entropy_transposed", ("linear_cross_entropy",),
        lambda g, x, w: ln.linear_cross_entropy(
            x, w, targets_of(x, 6), transpose=True, reduction="sum", ignore_index=1, label_smoothing=0.1),
        lambda x, w: cross_entropy(x @ w.T, 0.1, 1).sum().reshape(1, 1),
        [((3, 4), (6, 4)), ((1, 4), (6, 4)), ((5, 4), (6, 4))], shared=(1,),
    ),
    Case(
        "cross_entropy", ("cross_entropy",), lambda g, x: ln.cross_entropy(x, targets(x), reduction="none"),
        cross_entropy, [((1, 4),), ((3, 5),), ((2, 33),)],
    ),
    Case(
        "cross_entropy_smoothed", ("cross_entropy",),
        lambda g, x: ln.cross_entropy(x, targets(x), reduction="none", label_smoothing=0.1, ignore_index=1),
        lambda x: cross_entropy(x, 0.1, 1), [((1, 4),), ((3, 5),)],
    ),
    Case(
        "cross_entropy_mean", ("cross_entropy",), lambda g, x: ln.cross_entropy(x, targets(x), ignore_index=1),
        lambda x: np.asarray(cross_entropy(x, 0, 1).sum() / sum(t != 1 for t in targets(x))).reshape(1, 1),
        [((2, 4),), ((3, 5),)],
    ),
    Case(
        "nll_loss", ("nll_loss",), lambda g, x: ln.nll_loss(x, targets(x), reduction="none"),
        lambda x: -x[np.arange(len(x)), targets(x)].reshape(-1, 1), [((1, 4),), ((3, 5),)],
    ),
    *[
        Case(
            name, (op,), lambda g, a, b, f=getattr(ln, name): f(a, b, reduction="sum"),
            lambda a, b, r=reference: np.asarray(r(a, b).sum()).reshape(1, 1), SAME, draw=positive,
        )
        for name, op, reference in (
            ("mse_loss", "squared_error", lambda a, b: (a - b) ** 2),
            ("l1_loss", "absolute_error", lambda a, b: np.abs(a - b)),
            ("huber_loss", "huber_error", lambda a, b: np.where(np.abs(a - b) <= 1, (a - b) ** 2 / 2, np.abs(a - b) - 0.5)),
            ("hinge_loss", "hinge_error", lambda a, b: np.maximum(1 - a * b, 0)),
            ("kl_div", "kl_error", lambda a, b: b * (np.log(b) - a)),
            ("binary_cross_entropy_with_logits", "binary_cross_entropy_error", lambda a, b: np.log1p(np.exp(a)) - a * b),
        )
    ],
]  # fmt: skip

#: Tested elsewhere: dropout has no NumPy reference (test_dropout.py); the sources have no arguments.
ELSEWHERE = {"dropout", "input", "parameter"}
