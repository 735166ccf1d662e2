"""Elementwise operators: any shape in, the same shape out; two arguments are broadcast where a size is 1."""

from __future__ import annotations

from typing import Any

from .._core import lib
from ..errors import NodeTypeError, NodeValueError
from ..node import Node, settle
from .opdef import build, build_unary, graph_of, misuse, number_of, op, operator

__all__ = [
    "abs", "absolute_error", "add", "binary_cross_entropy_error", "clip", "cos", "div", "elu", "erf", "exp", "gelu",
    "hinge_error", "huber_error", "kl_error", "leaky_relu", "log", "maximum", "minimum", "mul", "neg", "pow", "relu",
    "sigmoid", "silu", "sin", "softplus", "sqrt", "square", "squared_error", "sub", "tanh",
]  # fmt: skip

_add1_x, _add1_xx, _add2 = lib.ln_add1_x, lib.ln_add1_xx, lib.ln_add2
_LEAKY_RELU = op("leaky_relu")
_ELU = op("elu")
_GELU = op("gelu")
_GELU_TANH = op("gelu_tanh")
_CLIP = op("clip")
_MINIMUM = op("minimum")
_MAXIMUM = op("maximum")
_SQUARED_ERROR = op("squared_error")
_ABSOLUTE_ERROR = op("absolute_error")
_HUBER_ERROR = op("huber_error")
_BINARY_CROSS_ENTROPY_ERROR = op("binary_cross_entropy_error")
_HINGE_ERROR = op("hinge_error")
_KL_ERROR = op("kl_error")


@operator("neg", x="node")
def neg(x: Node) -> Node:
    """-x, for every element."""
    return build_unary("neg", x)


@operator("abs", x="node")
def abs(x: Node) -> Node:
    """|x|; the gradient at 0 is 0, for every element."""
    return build_unary("abs", x)


@operator("square", x="node")
def square(x: Node) -> Node:
    """x², for every element."""
    return build_unary("square", x)


@operator("sqrt", x="node")
def sqrt(x: Node) -> Node:
    """√x, for every element."""
    return build_unary("sqrt", x)


@operator("exp", x="node")
def exp(x: Node) -> Node:
    """eˣ, for every element."""
    return build_unary("exp", x)


@operator("log", x="node")
def log(x: Node) -> Node:
    """The natural logarithm, for every element."""
    return build_unary("log", x)


@operator("sin", x="node")
def sin(x: Node) -> Node:
    """sin x, for every element."""
    return build_unary("sin", x)


@operator("cos", x="node")
def cos(x: Node) -> Node:
    """cos x, for every element."""
    return build_unary("cos", x)


@operator("erf", x="node")
def erf(x: Node) -> Node:
    """The error function, 2/√π ∫₀ˣ exp(-t²) dt, for every element."""
    return build_unary("erf", x)


@operator("tanh", x="node")
def tanh(x: Node) -> Node:
    """tanh x, for every element."""
    return build_unary("tanh", x)


@operator("sigmoid", x="node")
def sigmoid(x: Node) -> Node:
    """1 / (1 + e⁻ˣ), for every element."""
    return build_unary("sigmoid", x)


@operator("relu", x="node")
def relu(x: Node) -> Node:
    """max(x, 0), for every element."""
    return build_unary("relu", x)


@operator("silu", x="node")
def silu(x: Node) -> Node:
    """x · sigmoid(x) (Elfwing et al. 2018, Sigmoid-Weighted Linear Units), for every element."""
    return build_unary("silu", x)


@operator("softplus", x="node")
def softplus(x: Node) -> Node:
    """log(1 + eˣ), without overflow, for every element."""
    return build_unary("softplus", x)


def _with_attributes(name: str, op_id: int, x: Node, *attributes: float) -> Node:
    try:
        graph = x.graph
        if len(attributes) == 1:
            handle = _add1_x(graph._core, op_id, x._handle, attributes[0])
        else:
            handle = _add1_xx(graph._core, op_id, x._handle, *attributes)
    except AttributeError:
        misuse(name, x)
    except TypeError as error:
        raise NodeTypeError(f"{name}: attributes {attributes} are given; numbers are required") from error
    return settle(graph, handle)


@operator("leaky_relu", x="node", negative_slope="attribute")
def leaky_relu(x: Node, negative_slope: float = 0.01) -> Node:
    """x where x > 0, ``negative_slope`` · x elsewhere."""
    return _with_attributes("leaky_relu", _LEAKY_RELU, x, negative_slope)


@operator("elu", x="node", alpha="attribute")
def elu(x: Node, alpha: float = 1.0) -> Node:
    """x where x > 0, ``alpha`` · (eˣ - 1) elsewhere (Clevert et al. 2016)."""
    return _with_attributes("elu", _ELU, x, alpha)


def gelu(x: Node, approximate: str = "none") -> Node:
    """x · Φ(x), Φ the normal distribution function (Hendrycks and Gimpel 2016).

    Args:
        x: Any shape.
        approximate: ``"none"``, or ``"tanh"`` for 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    """
    if approximate not in ("none", "tanh"):
        raise NodeValueError(f"gelu: approximate={approximate!r} is given; 'none' or 'tanh' is required")
    op_id = _GELU if approximate == "none" else _GELU_TANH
    if not isinstance(x, Node):
        misuse("gelu", x)
    return build(x.graph, op_id, (x,))


def clip(x: Node, low: float, high: float) -> Node:
    """x brought into [``low``, ``high``]; the gradient is 0 outside."""
    if not number_of("clip", "low", low) <= number_of("clip", "high", high):
        raise NodeValueError(f"clip: low={low} and high={high} are given; low must not exceed high")
    return _with_attributes("clip", _CLIP, x, low, high)


def _binary(name: str, op_id: int, a: Any, b: Any) -> Node:
    """An operator of two operands, at least one of them a node; the other may be a parameter, number or array."""
    try:
        graph = a.graph
        handle = _add2(graph._core, op_id, a._handle, b._handle)
    except AttributeError:
        graph = graph_of(name, a, b)
        handle = _add2(graph._core, op_id, graph._operand(a, name), graph._operand(b, name))
    return settle(graph, handle, a, b)


def _binary_attribute(name: str, op_id: int, a: Any, b: Any, attribute: float) -> Node:
    graph = graph_of(name, a, b)
    handles = [graph._operand(a, name), graph._operand(b, name)]
    handle = lib.ln_add(graph._core, op_id, handles, 2, [attribute], 1, [], 0)
    return settle(graph, handle, a, b)


def _of_node(name: str, a: Any, b: Any, left: str, right: str) -> Node:
    """The operator method of whichever of the two is a node."""
    graph_of(name, a, b)
    node: Node = getattr(a, left)(b) if isinstance(a, Node) else getattr(b, right)(a)
    return node


def add(a: Any, b: Any) -> Node:
    """a + b, with rows, columns and scalars repeated where sizes of 1 meet larger ones."""
    return _of_node("add", a, b, "__add__", "__radd__")


def sub(a: Any, b: Any) -> Node:
    """a - b, broadcast as in :func:`add`."""
    return _of_node("sub", a, b, "__sub__", "__rsub__")


def mul(a: Any, b: Any) -> Node:
    """a · b elementwise, broadcast as in :func:`add`."""
    return _of_node("mul", a, b, "__mul__", "__rmul__")


def div(a: Any, b: Any) -> Node:
    """a / b, broadcast as in :func:`add`."""
    return _of_node("div", a, b, "__truediv__", "__rtruediv__")


def pow(a: Any, b: Any) -> Node:
    """aᵇ, broadcast as in :func:`add`."""
    return _of_node("pow", a, b, "__pow__", "__rpow__")


def minimum(a: Any, b: Any) -> Node:
    """The smaller of a and b; NaN where either is; at a tie each gets half the gradient."""
    return _binary("minimum", _MINIMUM, a, b)


def maximum(a: Any, b: Any) -> Node:
    """The larger of a and b; NaN where either is; at a tie each gets half the gradient."""
    return _binary("maximum", _MAXIMUM, a, b)


def squared_error(a: Any, b: Any) -> Node:
    """(a - b)² for every element."""
    return _binary("squared_error", _SQUARED_ERROR, a, b)


def absolute_error(a: Any, b: Any) -> Node:
    """|a - b| for every element."""
    return _binary("absolute_error", _ABSOLUTE_ERROR, a, b)


def huber_error(a: Any, b: Any, delta: float = 1.0) -> Node:
    """d²/2 where |d| ≤ ``delta``, ``delta`` (|d| - ``delta``/2) elsewhere, with d = a - b (Huber 1964)."""
    if not number_of("huber_error", "delta", delta) > 0:
        raise NodeValueError(f"huber_error: delta={delta} is given; more than 0 is required")
    return _binary_attribute("huber_error", _HUBER_ERROR, a, b, delta)


def binary_cross_entropy_error(logits: Any, targets: Any) -> Node:
    """-t log σ(x) - (1 - t) log(1 - σ(x)) for logits x and targets t in [0, 1], without overflow."""
    return _binary("binary_cross_entropy_error", _BINARY_CROSS_ENTROPY_ERROR, logits, targets)


def hinge_error(scores: Any, targets: Any, margin: float = 1.0) -> Node:
    """max(0, ``margin`` - s t) for scores s and targets t of -1 or +1."""
    return _binary_attribute("hinge_error", _HINGE_ERROR, scores, targets, number_of("hinge_error", "margin", margin))


def kl_error(log_probabilities: Any, targets: Any) -> Node:
    """t (log t - l) for log-probabilities l and target probabilities t; 0 where t is 0."""
    return _binary("kl_error", _KL_ERROR, log_probabilities, targets)
