"""Nests: nodes inside tuples, lists and dicts, found and replaced."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ..node import Node

__all__ = ["collect", "replace"]


def collect(nest: Any, nodes: dict[int, Node]) -> None:
    """Adds the nodes of a nest by their handles."""
    if isinstance(nest, Node):
        nodes[nest._handle] = nest
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            collect(item, nodes)
    elif isinstance(nest, dict):
        for item in nest.values():
            collect(item, nodes)


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
