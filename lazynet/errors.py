"""Every exception of LazyNet, and the one mapping from the core's status codes.

All derive from :class:`LazyNetError` and from the built-in exception of their kind, so that both
``except ln.errors.ShapeError`` and ``except ValueError`` work. Messages read
``<op>: what was given; what is required``.
"""


class LazyNetError(Exception):
    """Base of all exceptions of LazyNet."""


class ShapeError(LazyNetError, ValueError):
    """Operand shapes do not fit the operator; raised where the node is built."""


class StaleNodeError(LazyNetError, RuntimeError):
    """A node was used after its graph was cleared."""


class GraphError(LazyNetError, RuntimeError):
    """A call that the state of the graph does not allow."""


class OutOfMemoryError(LazyNetError, MemoryError):
    """The pool's limit or the machine's memory is reached; the graph is usable after ``clear()``."""


class NodeIndexError(LazyNetError, IndexError):
    """A token id, class id, row or column is out of range."""


class NodeValueError(LazyNetError, ValueError):
    """An attribute or a setting is out of its domain."""


class NodeTypeError(LazyNetError, TypeError):
    """An argument is of a type that the operator does not take."""


class TraceError(LazyNetError, RuntimeError):
    """A cell does what cannot be traced: it reads a value, or branches on one."""


class NonFiniteError(LazyNetError, ArithmeticError):
    """A NaN or an infinity was born while :func:`lazynet.detect_anomaly` was on."""


class DeviceError(LazyNetError, RuntimeError):
    """A library or a device that the core needs cannot be used."""


class InternalError(LazyNetError, RuntimeError):
    """A defect of LazyNet itself; please report it."""


class StateDictError(LazyNetError, ValueError):
    """A state dict does not fit the module; lists every missing, unexpected and misshapen name."""


class CheckpointError(LazyNetError, ValueError):
    """A checkpoint cannot be written, or is missing, damaged, of another program or of a newer format."""


class DataError(LazyNetError, ValueError):
    """A data file is missing or malformed, or a token is not in the vocabulary; names file and line, or the token."""


BY_STATUS: dict[int, type[LazyNetError]] = {
    -1: ShapeError,
    -2: StaleNodeError,
    -3: GraphError,
    -4: OutOfMemoryError,
    -5: NodeIndexError,
    -6: NodeValueError,
    -7: NodeTypeError,
    -8: NonFiniteError,
    -9: DeviceError,
    -10: InternalError,
}
