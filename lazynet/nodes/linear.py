"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..node import Node
from .opdef import build, graph_of, misuse, op, operator

if TYPE_CHECKING:
    from ..parameter import Parameter

__all__ = ["linear", "matmul"]

_LINEAR, _MATMUL = op("linear"), op("matmul")


@operator("linear", x="node", weight="operand", bias="optional", transpose="attribute")
def linear(x: Node, weight: Parameter | Node, bias: Parameter | Node | None = None, *, transpose: bool = False) -> Node:
    """x W + b: all rows of all examples that share ``weight`` and ``bias`` in one product.

    Args:
        x: ``(rows, in)``.
        weight: ``(in, out)``, or ``(out, in)`` with ``transpose``, as PyTorch keeps it.
        bias: ``(1, out)``, added to every row.
        transpose: Whether the weight is stored transposed.

    Returns:
        ``(rows, out)``.

    Example:
        >>> import lazynet as ln
        >>> w = ln.Parameter([[1.0, 2.0], [3.0, 4.0]])
        >>> graph = ln.Graph()
        >>> ln.linear(graph.input([[1.0, 1.0]]), w).value.tolist()
        [[4.0, 6.0]]
    """
    try:
        operands = (x, weight) if bias is None else (x, weight, bias)
        return build(x.graph, _LINEAR, operands, (bool(transpose),))
    except AttributeError:
        misuse("linear", x, weight, bias)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Node:
    """The product of two matrices of one example, each example with sizes of its own.

    A :class:`~lazynet.Parameter` as ``b`` makes it :func:`linear`, one product for all examples.

    Args:
        a: ``(n, k)``, or ``(k, n)`` with ``transpose_a``.
        b: ``(k, m)``, or ``(m, k)`` with ``transpose_b``.
        transpose_a: Whether ``a`` is taken transposed.
        transpose_b: Whether ``b`` is taken transposed.

    Returns:
        ``(n, m)``.
    """
    graph = graph_of("matmul", a, b)
    if isinstance(a, Node) and not isinstance(b, Node) and hasattr(b, "_handle") and not transpose_a:
        return linear(a, b, transpose=transpose_b)
    operands = [x if hasattr(x, "_handle") else graph.input(graph._operand_array(x, "matmul")) for x in (a, b)]
    return build(graph, _MATMUL, operands, (transpose_a, transpose_b))
