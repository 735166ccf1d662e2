"""Transition-based dependency parsing: arc-standard and arc-hybrid, their legal transitions and a static oracle.

Words are numbered from 1, as in CoNLL-U; head 0 is the root. There is no root on the stack: the word that is left at
the end is the root, so every sequence of 2n - 1 legal transitions makes one tree of n words, with one root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

from .. import errors
from .conllu import is_projective

__all__ = ["ArcHybrid", "ArcStandard", "Transition", "TransitionState"]

State = TypeVar("State", bound="TransitionState")


class Transition(IntEnum):
    """What a parser chooses from; the number serves as a class id."""

    SHIFT = 0
    LEFT = 1
    RIGHT = 2


class TransitionState(ABC):
    """A sentence that is being parsed.

    Args:
        length: Words of the sentence, at least 1.

    Attributes:
        stack: Words whose trees are not finished, the top last.
        next: The first word of the buffer, which ends with word ``length``; ``length + 1`` where it is empty.
        heads: The head of every word, 0 where it has none yet; at the end that is the root.
    """

    def __init__(self, length: int) -> None:
        if length < 1:
            raise errors.NodeValueError(f"{type(self).__name__}: {length} words are given; at least 1 is required")
        self.length, self.next = length, 1
        self.stack: list[int] = []
        self.heads = [0] * length

    @abstractmethod
    def arc(self, transition: Transition) -> tuple[int, int] | None:
        """The head and the dependent that a transition would join; None where it is illegal or a shift."""

    @property
    def is_final(self) -> bool:
        """Whether the tree is finished: one word is left."""
        return self.next > self.length and len(self.stack) == 1

    def legal(self) -> list[Transition]:
        """The transitions that may come next; never none before the end."""
        arcs = [transition for transition in (Transition.LEFT, Transition.RIGHT) if self.arc(transition)]
        return [Transition.SHIFT, *arcs] if self.next <= self.length else arcs

    def apply(self, transition: Transition) -> None:
        """Makes one step.

        Raises:
            NodeValueError: The transition is illegal here.
        """
        legal = self.legal()
        if transition not in legal:
            names = " or ".join(each.name for each in legal) or "none, for the tree is finished,"
            raise errors.NodeValueError(
                f"{type(self).__name__}: {transition!r} is given with the stack {self.stack} and "
                f"{self.length + 1 - self.next} words to come; {names} is required"
            )
        arc = self.arc(transition)
        if arc is None:
            self.stack.append(self.next)
            self.next += 1
        else:
            head, dependent = arc
            self.heads[dependent - 1] = head
            self.stack.remove(dependent)

    @classmethod
    def replay(cls: type[State], length: int, transitions: Iterable[Transition]) -> State:
        """The state after the transitions; its ``heads`` are the tree.

        Example:
            >>> from lazynet.data import ArcHybrid, Transition
            >>> ArcHybrid.replay(2, [Transition.SHIFT, Transition.LEFT, Transition.SHIFT]).heads
            [2, 0]
        """
        state = cls(length)
        for transition in transitions:
            state.apply(transition)
        return state

    @classmethod
    def oracle(cls, heads: Sequence[int]) -> list[Transition]:
        """The transitions that make a projective tree with one root; an arc is made as soon as it can be.

        Args:
            heads: The head of every word, 0 for the root.

        Raises:
            NodeValueError: The tree is not projective or has not exactly one root.

        Example:
            >>> from lazynet.data import ArcStandard
            >>> [transition.name for transition in ArcStandard.oracle([2, 0, 2])]
            ['SHIFT', 'SHIFT', 'LEFT', 'SHIFT', 'RIGHT']
        """
        if not is_projective(heads) or list(heads).count(0) != 1:
            raise errors.NodeValueError(
                f"{cls.__name__}: heads {list(heads)} are given; a projective tree with one root is required"
            )
        state, transitions = cls(len(heads)), []
        missing = Counter(heads)
        while not state.is_final:
            transition = state._gold(heads, missing)
            arc = state.arc(transition)
            if arc is not None:
                missing[arc[0]] -= 1
            state.apply(transition)
            transitions.append(transition)
        return transitions

    def _gold(self, heads: Sequence[int], missing: Counter[int]) -> Transition:
        """The arc of the tree that can be made, its dependent having all of its own, or a shift."""
        for transition in (Transition.LEFT, Transition.RIGHT):
            arc = self.arc(transition)
            if arc is not None and heads[arc[1] - 1] == arc[0] and not missing[arc[1]]:
                return transition
        return Transition.SHIFT


class ArcStandard(TransitionState):
    """Arcs join the two topmost words of the stack (Nivre 2004): LEFT makes the top the head, RIGHT the one below.

    Args:
        length: Words of the sentence, at least 1.
    """

    def arc(self, transition: Transition) -> tuple[int, int] | None:
        """The head and the dependent that a transition would join; None where it is illegal or a shift."""
        if transition == Transition.SHIFT or len(self.stack) < 2:
            return None
        below, top = self.stack[-2:]
        return (top, below) if transition == Transition.LEFT else (below, top)


class ArcHybrid(TransitionState):
    """The top of the stack finds its head (Kuhlmann et al. 2011): LEFT the next word, RIGHT the one below it.

    Args:
        length: Words of the sentence, at least 1.
    """

    def arc(self, transition: Transition) -> tuple[int, int] | None:
        """The head and the dependent that a transition would join; None where it is illegal or a shift."""
        if transition == Transition.LEFT and self.stack and self.next <= self.length:
            return self.next, self.stack[-1]
        if transition == Transition.RIGHT and len(self.stack) >= 2:
            return self.stack[-2], self.stack[-1]
        return None
