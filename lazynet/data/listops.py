"""ListOps: nested arithmetic on lists of digits, whose answer needs the tree (Nangia and Bowman 2018).

``[MAX 2 9 [MIN 4 7 ] 0 ]`` is 9. An expression becomes a binary tree by reading its arguments one by one onto the
operator: ``(((([MAX 2) 9) ([MIN ...)) 0) ])``.
"""

from __future__ import annotations

import random

from .trees import Tree

__all__ = ["OPERATORS", "evaluate", "generate"]

OPERATORS = ("[MAX", "[MIN", "[MED", "[SM")
_END = "]"


def evaluate(operator: str, arguments: list[int]) -> int:
    """The value of one bracket; ``[MED`` is the lower median, ``[SM`` the sum modulo 10.

    Example:
        >>> evaluate("[SM", [7, 8]), evaluate("[MED", [1, 9, 4, 5])
        (5, 4)
    """
    if operator == "[MAX":
        return max(arguments)
    if operator == "[MIN":
        return min(arguments)
    if operator == "[MED":
        return sorted(arguments)[(len(arguments) - 1) // 2]
    return sum(arguments) % 10


def _expression(rng: random.Random, depth: int, max_arguments: int) -> Tree:
    """A random expression of at most ``depth`` brackets inside each other; every node that has a value has a label."""
    if depth == 0 or rng.random() < 0.25:
        digit = rng.randrange(10)
        return Tree(digit, word=str(digit))
    operator = rng.choice(OPERATORS)
    arguments = [_expression(rng, depth - 1, max_arguments) for _ in range(rng.randint(2, max_arguments))]
    tree = Tree(-1, word=operator)
    for argument in arguments:
        tree = Tree(-1, left=tree, right=argument)
    value = evaluate(operator, [argument.label for argument in arguments])
    return Tree(value, left=tree, right=Tree(-1, word=_END))


def generate(count: int, seed: int, max_depth: int = 3, max_arguments: int = 4) -> list[Tree]:
    """Random expressions as binary trees, labelled with their values; nodes inside a bracket are labelled -1.

    Args:
        count: How many.
        seed: The same seed gives the same trees.
        max_depth: Brackets inside each other, at least 1 in every tree.
        max_arguments: Of one bracket, at least 2.
    """
    rng = random.Random(seed)
    trees: list[Tree] = []
    while len(trees) < count:
        tree = _expression(rng, max_depth, max_arguments)
        if not tree.is_leaf:
            trees.append(tree)
    return trees
