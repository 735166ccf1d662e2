"""Readers, generators, vocabularies, structures and minibatches."""

from .batches import minibatches, token_batches
from .conllu import EmptyNode, MultiwordToken, Sentence, Word, is_projective, read_conllu
from .documents import Document, read_documents
from .lattice import Lexicon, Span, WordLattice
from .listops import generate as generate_listops
from .tagged import read_tagged
from .text import read_lines, read_parallel
from .transitions import ArcHybrid, ArcStandard, Transition, TransitionState
from .trees import Tree, format_tree, parse_tree, read_trees
from .vocabulary import Vocabulary

__all__ = [
    "ArcHybrid",
    "ArcStandard",
    "Document",
    "EmptyNode",
    "Lexicon",
    "MultiwordToken",
    "Sentence",
    "Span",
    "Transition",
    "TransitionState",
    "Tree",
    "Vocabulary",
    "Word",
    "WordLattice",
    "format_tree",
    "generate_listops",
    "is_projective",
    "minibatches",
    "parse_tree",
    "read_conllu",
    "read_documents",
    "read_lines",
    "read_parallel",
    "read_tagged",
    "read_trees",
    "token_batches",
]
