"""Decoding: token by token from models of one example, all hypotheses of all sources batched."""

from .model import Hypothesis, StepModel
from .scoring import score
from .search import beam_search
from .single import greedy, sample

__all__ = ["Hypothesis", "StepModel", "beam_search", "greedy", "sample", "score"]
