"""The operator table as Python sees it, read from the core, and the helpers that build nodes from it."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import signature
from sys import intern
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from .. import _nodes, errors
from .._core import ffi, lib
from ..graph import Graph
from ..node import Node

__all__ = [
    "BUILT", "OPS", "OpDef", "build", "build_unary", "graph_of", "ids_of", "integer_of", "misuse", "number_of", "op",
    "operator",
]  # fmt: skip


class OpDef(NamedTuple):
    """One row of the operator table, see csrc/ops/ops.def."""

    id: int
    name: str
    family: str
    kind: str
    roles: str
    attributes: tuple[str, ...]
    backward_reads: str


def _text(pointer: Any) -> str:
    return str(ffi.string(pointer).decode())


#: Every operator of the core by name.
OPS: dict[str, OpDef] = {
    _text(lib.ln_op_name(i)): OpDef(
        i,
        _text(lib.ln_op_name(i)),
        _text(lib.ln_op_family(i)),
        _text(lib.ln_op_kind(i)),
        _text(lib.ln_op_roles(i)),
        tuple(_text(lib.ln_op_attributes(i)).split()),
        _text(lib.ln_op_backward_reads(i)),
    )
    for i in range(lib.ln_op_count())
}

#: Names of the operators that some function of this package builds.
BUILT: set[str] = {"input", "parameter", "slice", "reshape"}


def op(name: str) -> int:
    """The id of an operator that the caller builds."""
    BUILT.add(name)
    return OPS[name].id


# The operators of Node and Graph are built in graph.py.
for _name in (
    "add", "sub", "mul", "div", "pow", "add_scalar", "mul_scalar", "rsub_scalar", "rdiv_scalar", "pow_scalar",
    "rpow_scalar", "neg", "constant",
):  # fmt: skip
    op(_name)


def misuse(name: str, *arguments: Any, required: str = "a node") -> NoReturn:
    """Raises the error for arguments that are not what an operator takes."""
    given = ", ".join("None" if a is None else type(a).__name__ for a in arguments)
    hint = ""
    if arguments and all(hasattr(a, "_handle") and not isinstance(a, Node) for a in arguments):
        hint = "; make a node of a parameter with graph.parameter(p)"
    elif any(hasattr(a, "named_parameters") for a in arguments):
        hint = "; give a module's parameter, such as module.weight, or call the module"
    raise errors.NodeTypeError(f"{name}: {given} is given; {required} is required{hint}")


def graph_of(name: str, *operands: Any) -> Graph:
    """The graph of the first operand that is a node."""
    for operand in operands:
        if isinstance(operand, Node):
            return operand.graph
    misuse(name, *operands)


def number_of(name: str, what: str, value: Any) -> float:
    """A number that was given for an attribute."""
    if isinstance(value, (int, float, np.number)) and not isinstance(value, np.complexfloating):
        return float(value)
    raise errors.NodeTypeError(f"{name}: {what} of type {type(value).__name__} is given; a number is required")


def integer_of(name: str, what: str, value: Any) -> int:
    """An integer of at most 64 bits that was given for a size or a position."""
    if not isinstance(value, (int, np.integer)):
        raise errors.NodeTypeError(f"{name}: {what} of type {type(value).__name__} is given; an integer is required")
    if not -(2**63) <= value < 2**63:
        raise errors.NodeValueError(f"{name}: {what} {value} is given; an integer of 64 bits is required")
    return int(value)


def ids_of(name: str, ids: Any) -> list[int]:
    """A list of integers from an integer, a sequence or an array of any integer type."""
    if type(ids) is int:  # of any size: what is out of range is not of a wrong type
        return [ids]
    if type(ids) is list and set(map(type, ids)) == {int}:
        return ids
    array = np.asarray(ids)
    if array.dtype == object or (array.size and array.dtype.kind not in "iu"):
        raise errors.NodeTypeError(f"{name}: ids of type {array.dtype} are given; integers are required")
    if array.ndim > 1:
        raise errors.ShapeError(f"{name}: ids of shape {array.shape} are given; one id or a sequence is required")
    result: list[int] = array.reshape(-1).tolist()
    return result


def build(
    graph: Graph,
    op_id: int,
    operands: Sequence[Any],
    attributes: Sequence[float] = (),
    payload: Sequence[int] = (),
) -> Node:
    """The node of an operator; operands are nodes and parameters. AttributeError where one is neither."""
    try:
        node: Node = _nodes.build(graph, op_id, operands, attributes, payload)
        return node
    except OverflowError as error:
        raise errors.NodeIndexError(f"{_text(lib.ln_op_name(op_id))}: {error}") from None


def build_unary(name: str, x: Node) -> Node:
    """The node of an operator of one node without attributes."""
    if not isinstance(x, Node):
        misuse(name, x)
    return build(x.graph, OPS[name].id, (x,))


# What an argument may be for csrc/python/operator.cc to build the node without the Python function.
_KINDS = {
    "node": "n",  # the first operand; says in which graph
    "operand": "o",  # a node or a parameter
    "optional": "p",  # the same, or None
    "nodes": "l",  # a list or tuple of nodes, at least one
    "graph": "g",
    "id": "i",  # one integer, at least 0
    "attribute": "a",  # a number
    "preset": "d",  # an attribute that is left out
    "choice": "c",  # which of several operators
}
# Copies and pickles of a model hold an operator by its name.
copyreg.pickle(_nodes.Operator, lambda operator: str(vars(operator)["__name__"]))
_Function = TypeVar("_Function", bound=Callable[..., Any])


def operator(ops: str | Sequence[str], **kinds: str | tuple[str, ...]) -> Callable[[_Function], _Function]:
    """Lets C build the nodes of a function whenever its arguments are of the plainest kinds.

    The function is called with all others, and where building fails: it holds every rule and every message.

    Args:
        ops: The operator, or the ones between which a ``"choice"`` decides.
        kinds: For each argument of the function one of the kinds above, or a tuple of words that make no difference
            (and are its only values). Their order is that of the function; defaults are read from it.
    """
    ids = tuple(op(name) for name in ([ops] if isinstance(ops, str) else ops))

    def decorate(function: _Function) -> _Function:
        arguments, positional = [], 0
        for argument in signature(function).parameters.values():
            kind = kinds[argument.name]
            preset = argument.default if isinstance(argument.default, (int, float)) else 0.0
            words = kind if isinstance(kind, tuple) else ()
            letter = "w" if isinstance(kind, tuple) else _KINDS[kind]
            arguments.append((argument.name, letter, float(preset), tuple(map(intern, words))))
            positional += argument.kind is not argument.KEYWORD_ONLY
        fast: Any = update_wrapper(_nodes.Operator(ids, positional, function, tuple(arguments)), function)
        return fast

    return decorate
