"""Embedding lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import errors
from ..graph import Graph
from ..node import Node
from .opdef import build, ids_of, misuse, op, operator

if TYPE_CHECKING:
    from ..parameter import Parameter

__all__ = ["lookup", "lookup_node"]

_LOOKUP, _LOOKUP_IDS = op("lookup"), op("lookup_ids")


@operator("lookup", graph="graph", table="operand", ids="id")
def lookup(graph: Graph, table: Parameter, ids: Any) -> Node:
    """Rows of a table.

    Args:
        graph: The graph that the node belongs to.
        table: ``(words, dim)``. With ``sparse=True`` only touched rows get a gradient and an update.
        ids: One id, or a sequence or array of them, each at least 0 and less than ``words``.

    Returns:
        ``(len(ids), dim)``; one row for one id.

    Raises:
        NodeIndexError: An id is out of range; names the table, the id and the size.
    """
    try:
        return build(graph, _LOOKUP, (table,), (), ids_of("lookup", ids))
    except AttributeError:
        misuse("lookup", graph, table, ids)
    except (errors.NodeIndexError, OverflowError) as error:
        raise errors.NodeIndexError(f"{error} (table {table.name or 'without a name'!r})") from None


def lookup_node(table: Parameter, ids: Node) -> Node:
    """Rows of a table by ids that the graph computes, such as :func:`~lazynet.argmax` gives.

    Args:
        table: ``(words, dim)``, sparse or not.
        ids: Any shape; whole numbers of at least 0 and less than ``words``, read row by row. No gradient flows to them.

    Returns:
        ``(elements of ids, dim)``.

    Raises:
        NodeIndexError: When it is computed: an id is out of range or no whole number.
    """
    try:
        return build(ids.graph, _LOOKUP_IDS, (table, ids))
    except AttributeError:
        misuse("lookup_node", table, ids)
