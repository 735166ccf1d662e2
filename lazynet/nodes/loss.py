"""Losses. ``reduction`` is as in PyTorch: ``"mean"`` (the default), ``"sum"``, or ``"none"`` for one number an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import errors
from ..node import Node
from .elementwise import (
    absolute_error,
    binary_cross_entropy_error,
    hinge_error,
    huber_error,
    kl_error,
    squared_error,
)
from .opdef import build, ids_of, integer_of, misuse, number_of, op, operator
from .reduce import mean, sum

if TYPE_CHECKING:
    from ..parameter import Parameter

__all__ = [
    "binary_cross_entropy_with_logits", "cross_entropy", "hinge_loss", "huber_loss", "kl_div", "l1_loss",
    "linear_cross_entropy", "mse_loss", "nll_loss",
]  # fmt: skip

_CROSS_ENTROPY, _NLL_LOSS = op("cross_entropy"), op("nll_loss")
_LINEAR_CROSS_ENTROPY = op("linear_cross_entropy")

_REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise errors.NodeValueError(f"{name}: reduction={reduction!r} is given; 'mean', 'sum' or 'none' is required")


def _reduced(name: str, loss: Node, reduction: str) -> Node:
    _check_reduction(name, reduction)
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


def _by_class(
    name: str,
    op_id: int,
    operands: tuple[Any, ...],
    target: Any,
    reduction: str,
    ignore_index: int,
    attributes: tuple[float, ...],
) -> Node:
    _check_reduction(name, reduction)
    if not isinstance(operands[0], Node):
        misuse(name, *operands)
    targets = ids_of(name, target)
    rows = build(operands[0].graph, op_id, operands, attributes, targets)
    if len(targets) == 1 and (reduction != "mean" or targets[0] != ignore_index):
        return rows  # a 1 x 1 node already
    if reduction == "none":
        return rows
    counted = len(targets) - targets.count(ignore_index)
    total = sum(rows)
    return total if reduction == "sum" else total * (1 / counted if counted else 0.0)


@operator(
    "cross_entropy", logits="node", target="id", reduction=_REDUCTIONS, ignore_index="preset", label_smoothing="preset"
)
def cross_entropy(
    logits: Node,
    target: Any,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Node:
    """-log softmax(logits)[target] of every row.

    Args:
        logits: ``(rows, classes)``.
        target: A class id for one row, or a sequence or array with one a row.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for ``(rows, 1)``.
        ignore_index: Rows with this target do not count and get no gradient.
        label_smoothing: The share of the target that is spread evenly over all classes (Szegedy et al. 2016).

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> round(ln.cross_entropy(graph.input([[0.0, 0.0]]), 1).item(), 4)
        0.6931
    """
    attributes = _class_attributes("cross_entropy", ignore_index, label_smoothing)
    return _by_class("cross_entropy", _CROSS_ENTROPY, (logits,), target, reduction, ignore_index, attributes)


def _class_attributes(name: str, ignore_index: int, label_smoothing: float) -> tuple[float, float]:
    if not 0 <= number_of(name, "label_smoothing", label_smoothing) <= 1:
        raise errors.NodeValueError(f"{name}: label_smoothing={label_smoothing} is given; 0 to 1 is required")
    return float(integer_of(name, "ignore_index", ignore_index)), label_smoothing


def linear_cross_entropy(
    x: Node,
    weight: Parameter | Node,
    target: Any,
    bias: Parameter | Node | None = None,
    *,
    transpose: bool = False,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Node:
    """:func:`cross_entropy` of :func:`~lazynet.linear`, for large vocabularies: the logits of all rows never exist.

    They are made for a block of rows of all examples at a time; while a block is in the cache, training makes the
    gradients of x, the weight and the bias too, so that backward need not compute it again (after Hsu et al. 2024,
    Liger Kernel). Logits are made once more only where rows' losses have different weights.

    Args:
        x: ``(rows, in)``.
        weight: ``(in, classes)``, or ``(classes, in)`` with ``transpose``; may be a table that is also looked up
            (made with ``sparse=False``).
        target: As in :func:`cross_entropy`.
        bias: ``(1, classes)``.
        transpose: Whether the weight is stored transposed, as in ``nn.Linear`` and ``nn.Embedding``.
        reduction: As in :func:`cross_entropy`.
        ignore_index: As in :func:`cross_entropy`.
        label_smoothing: As in :func:`cross_entropy`.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> weight = ln.Parameter([[0.0, 0.0]])
        >>> round(ln.linear_cross_entropy(graph.input([[1.0], [2.0]]), weight, [0, 1]).item(), 4)
        0.6931
    """
    name = "linear_cross_entropy"
    attributes = (float(bool(transpose)), *_class_attributes(name, ignore_index, label_smoothing))
    operands = (x, weight) if bias is None else (x, weight, bias)
    try:
        return _by_class(name, _LINEAR_CROSS_ENTROPY, operands, target, reduction, ignore_index, attributes)
    except AttributeError:
        misuse(name, *operands)


@operator("nll_loss", log_probabilities="node", target="id", reduction=_REDUCTIONS, ignore_index="preset")
def nll_loss(log_probabilities: Node, target: Any, *, reduction: str = "mean", ignore_index: int = -100) -> Node:
    """-log_probabilities[target] of every row; arguments as in :func:`cross_entropy`."""
    attributes = (float(integer_of("nll_loss", "ignore_index", ignore_index)),)
    return _by_class("nll_loss", _NLL_LOSS, (log_probabilities,), target, reduction, ignore_index, attributes)


def binary_cross_entropy_with_logits(logits: Node, target: Any, *, reduction: str = "mean") -> Node:
    """-t log σ(x) - (1 - t) log(1 - σ(x)) for logits x and targets t in [0, 1] of the same shape."""
    name = "binary_cross_entropy_with_logits"
    return _reduced(name, binary_cross_entropy_error(logits, target), reduction)


def mse_loss(x: Node, target: Any, *, reduction: str = "mean") -> Node:
    """(x - t)², t of x's shape."""
    return _reduced("mse_loss", squared_error(x, target), reduction)


def l1_loss(x: Node, target: Any, *, reduction: str = "mean") -> Node:
    """|x - t|, the mean absolute error, t of x's shape."""
    return _reduced("l1_loss", absolute_error(x, target), reduction)


def huber_loss(x: Node, target: Any, *, delta: float = 1.0, reduction: str = "mean") -> Node:
    """Quadratic within ``delta`` of the target, linear beyond (Huber 1964)."""
    return _reduced("huber_loss", huber_error(x, target, delta), reduction)


def hinge_loss(scores: Node, target: Any, *, margin: float = 1.0, reduction: str = "mean") -> Node:
    """max(0, margin - s t) for scores s and targets t of -1 or +1."""
    return _reduced("hinge_loss", hinge_error(scores, target, margin), reduction)


def kl_div(log_probabilities: Node, target: Any, *, reduction: str = "mean") -> Node:
    """Σ t (log t - l) for log-probabilities l and target probabilities t; ``"mean"`` divides by elements, as PyTorch does."""
    return _reduced("kl_div", kl_error(log_probabilities, target), reduction)
