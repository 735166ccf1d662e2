"""Binary trees with labels, as s-expressions: ``(3 (2 It) (4 works))``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import errors
from .text import read_lines

__all__ = ["Tree", "format_tree", "parse_tree", "read_trees"]

# Words may hold a no-break space, so only the plain space separates.
_TOKEN = re.compile(r"[()]|[^() \t\r\n]+")


class Tree:
    """A leaf with a word, or an inner node with two children; ``label`` -1 means that it has none."""

    __slots__ = ("label", "left", "right", "word")

    def __init__(self, label: int, word: Any = None, left: Tree | None = None, right: Tree | None = None) -> None:
        self.label, self.word, self.left, self.right = label, word, left, right

    @property
    def is_leaf(self) -> bool:
        """Whether it has a word and no children."""
        return self.left is None

    def postorder(self) -> Iterator[Tree]:
        """All nodes, children before parents, without recursion."""
        stack = [(self, False)]
        while stack:
            node, ready = stack.pop()
            if ready or node.left is None or node.right is None:
                yield node
            else:
                stack += [(node, True), (node.right, False), (node.left, False)]

    def __repr__(self) -> str:
        return f"<Tree {format_tree(self)}>"


def parse_tree(text: str) -> Tree:
    """A tree from its s-expression.

    Raises:
        DataError: Says what is wrong with the text.

    Example:
        >>> from lazynet.data import parse_tree
        >>> [leaf.word for leaf in parse_tree("(3 (2 It) (4 works))").postorder() if leaf.is_leaf]
        ['It', 'works']
    """
    open_nodes: list[list[Any]] = []
    result: Tree | None = None
    for token in _TOKEN.findall(text):
        if result is not None:
            raise errors.DataError(f"tree: {token!r} follows the closing bracket; one tree is required")
        if token == "(":
            open_nodes.append([])
        elif not open_nodes:
            raise errors.DataError(f"tree: it begins with {token!r}; '(' is required")
        elif token == ")":
            node = _node(open_nodes.pop())
            if open_nodes:
                open_nodes[-1].append(node)
            else:
                result = node
        else:
            open_nodes[-1].append(token)
    if result is None:
        raise errors.DataError("tree: a closing bracket is missing" if open_nodes else "tree: the text is empty")
    return result


def _node(parts: list[Any]) -> Tree:
    try:
        label = int(parts[0])
    except (IndexError, TypeError, ValueError):
        raise errors.DataError("tree: a bracket does not begin with a label; an integer is required") from None
    if len(parts) == 2 and isinstance(parts[1], str):
        return Tree(label, word=parts[1])
    if len(parts) == 3 and isinstance(parts[1], Tree) and isinstance(parts[2], Tree):
        return Tree(label, left=parts[1], right=parts[2])
    raise errors.DataError(f"tree: a node has {len(parts) - 1} parts; one word or two subtrees are required")


def format_tree(tree: Tree) -> str:
    """The s-expression of a tree."""
    texts: list[str] = []
    for node in tree.postorder():
        if node.is_leaf:
            texts.append(f"({node.label} {node.word})")
        else:
            right, left = texts.pop(), texts.pop()
            texts.append(f"({node.label} {left} {right})")
    return texts[0]


def read_trees(path: str | Path) -> list[Tree]:
    """Trees of a file, one a line; empty lines are passed over.

    Raises:
        DataError: The file is missing or malformed; names file and line.
    """
    trees = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                trees.append(parse_tree(line))
            except errors.DataError as error:
                raise errors.DataError(f"{path}, line {number}: {error}") from None
    return trees
