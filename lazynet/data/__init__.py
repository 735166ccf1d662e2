"""Readers, generators and minibatches."""

from .batches import minibatches
from .listops import generate as generate_listops
from .tagged import read_tagged
from .trees import Tree, format_tree, parse_tree, read_trees

__all__ = [
    "Tree",
    "format_tree",
    "generate_listops",
    "minibatches",
    "parse_tree",
    "read_tagged",
    "read_trees",
]
