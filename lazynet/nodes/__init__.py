"""The operators that a user calls, one file a family."""

from . import (
    attention,
    convolution,
    crf,
    elementwise,
    embedding,
    linear,
    loss,
    normalization,
    opdef,
    pooling,
    reduce,
    search,
    shape,
    softmax,
)
from . import (
    dropout as _dropout,
)

__all__ = ["FAMILIES", "opdef"]

#: The modules whose ``__all__`` are the operators.
FAMILIES = (
    elementwise, linear, embedding, shape, reduce, softmax, _dropout, normalization, loss, attention, convolution, crf,
    search, pooling,
)  # fmt: skip
