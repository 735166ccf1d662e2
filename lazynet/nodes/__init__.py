"""The operators that a user calls, one file a family."""

from . import (
    dropout as _dropout,
)
from . import (
    elementwise,
    embedding,
    linear,
    loss,
    normalization,
    opdef,
    reduce,
    shape,
    softmax,
)

__all__ = ["FAMILIES", "opdef"]

#: The modules whose ``__all__`` are the operators.
FAMILIES = (elementwise, linear, embedding, shape, reduce, softmax, _dropout, normalization, loss)
