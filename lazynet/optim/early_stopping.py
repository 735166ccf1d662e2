"""Early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np

from .. import errors
from .._state_dict import Expected, differences
from ..module import Module

__all__ = ["EarlyStopping"]

_KEPT = "model."


class EarlyStopping:
    """Says when a metric has stopped improving, and keeps the best model.

    Args:
        patience: It stops after this many updates in a row that are no better than the best, at least 1.
        mode: ``"min"`` where a lower value is better, ``"max"`` where a higher one is.
        min_delta: By how much a value must be better to count, at least 0. NaN never counts.

    Attributes:
        best: The best value; None before the first.
        num_bad: Updates in a row since then.

    Example:
        >>> import lazynet as ln
        >>> model, stopping = ln.nn.Linear(2, 2), ln.optim.EarlyStopping(patience=2, mode="max")
        >>> for accuracy in (0.5, 0.7, 0.6, 0.7, 0.9):
        ...     best = stopping.update(accuracy, model)
        ...     if stopping.stop:
        ...         break
        >>> stopping.restore(model)
        >>> stopping.best, accuracy
        (0.7, 0.7)
    """

    def __init__(self, patience: int, mode: str = "min", min_delta: float = 0.0) -> None:
        if patience < 1:
            raise errors.NodeValueError(f"EarlyStopping: patience={patience} is given; at least 1 is required")
        if mode not in ("min", "max"):
            raise errors.NodeValueError(f"EarlyStopping: mode={mode!r} is given; 'min' or 'max' is required")
        if not min_delta >= 0:
            raise errors.NodeValueError(f"EarlyStopping: min_delta={min_delta} is given; at least 0 is required")
        self.patience, self.mode, self.min_delta = patience, mode, min_delta
        self.best: float | None = None
        self.num_bad = 0
        self._kept: dict[str, np.ndarray] = {}

    def update(self, value: SupportsFloat, model: Module | None = None) -> bool:
        """Takes the value of one more evaluation.

        Args:
            value: A number.
            model: Whose parameters are copied, to ``restore``, if the value is the best so far.

        Returns:
            Whether it is the best so far.
        """
        number = float(value)
        if self.best is None:
            better = not np.isnan(number)
        elif self.mode == "min":
            better = number < self.best - self.min_delta
        else:
            better = number > self.best + self.min_delta
        if better:
            self.best, self.num_bad = number, 0
            self._kept = {} if model is None else model.state_dict()
        else:
            self.num_bad += 1
        return better

    @property
    def stop(self) -> bool:
        """Whether the last ``patience`` updates were no better."""
        return self.num_bad >= self.patience

    def restore(self, model: Module) -> None:
        """Gives the model the parameters that it had at the best value."""
        if not self._kept:
            raise errors.StateDictError(
                "restore: nothing is kept; update(value, model) with the best value is required"
            )
        model.load_state_dict(self._kept)

    def state_dict(self) -> dict[str, Any]:
        """The best value, updates since then, and copies of the parameters that are kept."""
        kept = {f"{_KEPT}{name}": array.copy() for name, array in self._kept.items()}
        return {"best": self.best, "num_bad": self.num_bad, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict()`` gave.

        Raises:
            StateDictError: It is the state of something else; then nothing was changed.
        """
        kept = {name.removeprefix(_KEPT): value for name, value in state.items() if name.startswith(_KEPT)}
        own = {name: value for name, value in state.items() if not name.startswith(_KEPT)}
        if own.get("best", 0) is None:
            own["best"] = np.nan
        if problems := differences({"best": Expected(), "num_bad": Expected()}, own):
            raise errors.StateDictError(f"load_state_dict into EarlyStopping: {problems}")
        self.best, self.num_bad = state["best"], state["num_bad"]
        self._kept = {name: np.array(array) for name, array in kept.items()}
