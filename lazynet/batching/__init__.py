"""The auto-batcher as a user meets it: policies, and plans to look at, draw and verify."""

from .learned import FiniteState, Learning, learn
from .plan import Batch, Buffer, Operand, Plan
from .policies import Agenda, Lookahead, Policy, ReadySignature

__all__ = [
    "Agenda",
    "Batch",
    "Buffer",
    "FiniteState",
    "Learning",
    "Lookahead",
    "Operand",
    "Plan",
    "Policy",
    "ReadySignature",
    "learn",
]
