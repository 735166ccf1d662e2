"""Nests: nodes inside tuples, lists and dicts, found and replaced."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ..node import Node

__all__ = ["collect", "replace"]


def collect(nest: Any) -> dict[int, Node]:
    """The nodes of a nest by their handles, each once."""
    nodes, pending = {}, [nest]
    while pending:
        each = pending.pop()
        if isinstance(each, Node):
            nodes[each._handle] = each
        elif isinstance(each, (tuple, list)):
            pending.extend(each)
        elif isinstance(each, dict):
            pending.extend(each.values())
    return nodes


def replace(nest: Any, nodes: Mapping[int, Node]) -> Any:
    """The same nest with other nodes, given by the handles of those in it."""
    if isinstance(nest, Node):
        return nodes[nest._handle]
    if isinstance(nest, (tuple, list)):
        items = [replace(item, nodes) for item in nest]
        return type(nest)(*items) if hasattr(nest, "_fields") else type(nest)(items)
    if isinstance(nest, dict):
        result = copy.copy(nest)  # knows what a subclass keeps besides, a default say
        result.update((key, replace(item, nodes)) for key, item in nest.items())
        return result
    return nest
