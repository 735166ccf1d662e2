"""Linear, Embedding, Dropout, LayerNorm, RMSNorm."""

from __future__ import annotations

import math
from typing import Any

from .. import init
from ..graph import Graph
from ..module import Module
from ..node import Node
from ..nodes.dropout import dropout
from ..nodes.embedding import lookup
from ..nodes.linear import linear
from ..nodes.normalization import layer_norm, rms_norm
from ..parameter import Parameter

__all__ = ["Dropout", "Embedding", "LayerNorm", "Linear", "RMSNorm"]


class Linear(Module):
    """x Wᵀ + b, the weight kept as ``(out, in)``.

    Args:
        in_features: Columns of the input.
        out_features: Columns of the output.
        bias: Whether a bias is added.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> ln.nn.Linear(3, 2)(graph.input([[1.0, 2.0, 3.0]])).shape
        (1, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = "float32") -> None:
        bound = 1 / math.sqrt(max(in_features, 1))
        self.weight = Parameter((out_features, in_features), init.uniform(-bound, bound), dtype=dtype)
        self.bias = Parameter((out_features,), init.uniform(-bound, bound), dtype=dtype) if bias else None

    def forward(self, x: Node) -> Node:
        """``(rows, in)`` to ``(rows, out)``."""
        return linear(x, self.weight, self.bias, transpose=True)


class Embedding(Module):
    """A table of vectors; with ``sparse`` (the default) only the rows of a minibatch are updated.

    Args:
        num_embeddings: Rows.
        embedding_dim: Columns.
        sparse: Keep gradients of touched rows only.
        dtype: Of the table.

    Example:
        >>> import lazynet as ln
        >>> graph = ln.Graph()
        >>> ln.nn.Embedding(10, 4)(graph, [1, 5, 1]).shape
        (3, 4)
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, sparse: bool = True, *, dtype: Any = "float32") -> None:
        self.weight = Parameter((num_embeddings, embedding_dim), init.normal(), sparse=sparse, dtype=dtype)

    def forward(self, graph: Graph, ids: Any) -> Node:
        """One row an id."""
        return lookup(graph, self.weight, ids)


class Dropout(Module):
    """Zeroes elements with probability ``p`` while the module and the graph are training.

    Args:
        p: At least 0 and less than 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def forward(self, x: Node) -> Node:
        """Any shape in, the same out."""
        return dropout(x, self.p, None if self.training else False)


class LayerNorm(Module):
    """Layer normalization over the columns, with a learned scale and shift (Ba et al. 2016).

    Args:
        normalized_shape: Number of columns.
        eps: Added to the variance.
        bias: Whether there is a shift.
        dtype: Of the parameters.
    """

    def __init__(self, normalized_shape: int, eps: float = 1e-5, bias: bool = True, *, dtype: Any = "float32") -> None:
        self.eps = eps
        self.weight = Parameter((normalized_shape,), init.ones, dtype=dtype)
        self.bias = Parameter((normalized_shape,), init.zeros, dtype=dtype) if bias else None

    def forward(self, x: Node) -> Node:
        """``(rows, cols)`` in, the same out."""
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Division by the root mean square of the columns, with a learned scale (Zhang and Sennrich 2019).

    Args:
        normalized_shape: Number of columns.
        eps: Added to the mean square.
        dtype: Of the parameters.
    """

    def __init__(self, normalized_shape: int, eps: float = 1e-6, *, dtype: Any = "float32") -> None:
        self.eps = eps
        self.weight = Parameter((normalized_shape,), init.ones, dtype=dtype)

    def forward(self, x: Node) -> Node:
        """``(rows, cols)`` in, the same out."""
        return rms_norm(x, self.weight, self.eps)
