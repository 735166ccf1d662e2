"""Learning rates that change as training goes on; names and results as in PyTorch where it has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat

from .. import errors
from .._state_dict import Expected, differences
from .optimizers import Optimizer

__all__ = ["CosineLR", "InverseSquareRootLR", "ReduceLROnPlateau", "Schedule", "StepLR", "WarmupLR"]


def _require(schedule: object, valid: bool, given: str, required: str) -> None:
    if not valid:
        raise errors.NodeValueError(f"{type(schedule).__name__}: {given} is given; {required} is required")


class _Schedule:
    """What sets the learning rate of an optimizer and can be saved: where it is, not what it was made with."""

    _progress: tuple[str, ...] = ()

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise errors.NodeTypeError(
                f"{type(self).__name__}: {type(optimizer).__name__} is given; an optimizer is required"
            )
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """The learning rate and how far the schedule has come."""
        return {"lr": self.optimizer.lr, **{name: getattr(self, name) for name in self._progress}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict()`` gave and sets the optimizer's learning rate.

        Raises:
            StateDictError: The state is of another schedule; then nothing was changed.
        """
        expected = {name: Expected() for name in ("lr", *self._progress)}
        if problems := differences(expected, state):
            raise errors.StateDictError(f"load_state_dict into {type(self).__name__}: {problems}")
        self.optimizer.lr = state["lr"]
        for name in self._progress:
            setattr(self, name, state[name])


class Schedule(_Schedule):
    """Base of schedules that are a formula: a subclass defines ``rate``.

    Call ``step()`` after ``optimizer.step()``. What the optimizer's ``lr`` is set to otherwise is overwritten then.

    Args:
        optimizer: Whose ``lr`` is set, to that of the first update at once.

    Attributes:
        base_lr: The optimizer's ``lr`` when the schedule was made.
        steps: How often ``step()`` was called.

    Example:
        >>> import lazynet as ln
        >>> class Halving(ln.optim.Schedule):
        ...     def rate(self, steps):
        ...         return self.base_lr * 0.5**steps
        >>> optimizer = ln.optim.SGD([ln.Parameter([1.0])], lr=0.4)
        >>> schedule = Halving(optimizer)
        >>> optimizer.step()
        >>> schedule.step()
        >>> optimizer.lr
        0.2
    """

    _progress = ("base_lr", "steps")

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.base_lr, self.steps = optimizer.lr, 0
        optimizer.lr = self.rate(0)

    def rate(self, steps: int) -> float:
        """The learning rate of the update that ``steps`` others came before."""
        raise NotImplementedError(f"{type(self).__name__} has no rate()")

    def step(self) -> None:
        """Sets the learning rate of the next update."""
        self.steps += 1
        self.optimizer.lr = self.rate(self.steps)


class WarmupLR(Schedule):
    """Linear from ``lr / warmup`` in the first update to ``lr`` in update ``warmup``, then constant.

    Args:
        optimizer: With the ``lr`` to reach.
        warmup: Updates, at least 1.

    Example:
        >>> import lazynet as ln
        >>> schedule = WarmupLR(ln.optim.SGD([ln.Parameter([1.0])], lr=1.0), warmup=4)
        >>> [schedule.rate(steps) for steps in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    def __init__(self, optimizer: Optimizer, warmup: int) -> None:
        _require(self, warmup >= 1, f"warmup={warmup}", "at least 1")
        self.warmup = warmup
        super().__init__(optimizer)

    def rate(self, steps: int) -> float:
        """See the class."""
        return self.base_lr * min(1.0, (steps + 1) / self.warmup)


class InverseSquareRootLR(Schedule):
    """Linear warm-up, then falling with the square root of the number of updates (Vaswani et al. 2017).

    In update n, ``lr · min(n / warmup, √(warmup / n))``: ``lr`` is the highest rate, that of update ``warmup``. With
    ``d_model``, ``lr · d_model^-½ · min(n · warmup^-3/2, n^-½)`` as in the paper, where ``lr`` is 1.

    Args:
        optimizer: With the ``lr`` of the formula.
        warmup: Updates, at least 1.
        d_model: Columns of the model's states; None for the form whose highest rate is ``lr``.

    Example:
        >>> import lazynet as ln
        >>> schedule = InverseSquareRootLR(ln.optim.SGD([ln.Parameter([1.0])], lr=1.0), warmup=4)
        >>> [schedule.rate(n - 1) for n in (1, 2, 4, 16)]
        [0.25, 0.5, 1.0, 0.5]
    """

    def __init__(self, optimizer: Optimizer, warmup: int, d_model: int | None = None) -> None:
        _require(self, warmup >= 1, f"warmup={warmup}", "at least 1")
        _require(self, d_model is None or d_model >= 1, f"d_model={d_model}", "None or at least 1")
        self.warmup, self.d_model = warmup, d_model
        super().__init__(optimizer)

    def rate(self, steps: int) -> float:
        """See the class."""
        update = steps + 1
        highest = self.base_lr if self.d_model is None else self.base_lr / math.sqrt(self.d_model * self.warmup)
        return highest * min(update / self.warmup, math.sqrt(self.warmup / update))


class CosineLR(Schedule):
    """Linear warm-up as in :class:`WarmupLR`, then half a cosine down to ``eta_min`` (Loshchilov and Hutter 2017).

    Without warm-up it is PyTorch's ``CosineAnnealingLR`` with ``T_max=total_steps``, but stays at ``eta_min`` after that.

    Args:
        optimizer: With the highest ``lr``.
        total_steps: Updates until ``eta_min`` is reached, warm-up included.
        warmup: Updates, at least 0 and less than ``total_steps``.
        eta_min: The lowest rate, at the end.

    Example:
        >>> import lazynet as ln
        >>> schedule = CosineLR(ln.optim.SGD([ln.Parameter([1.0])], lr=1.0), total_steps=6, warmup=2)
        >>> [round(schedule.rate(steps), 3) for steps in range(8)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, warmup: int = 0, eta_min: float = 0.0) -> None:
        _require(
            self,
            0 <= warmup < total_steps,
            f"warmup={warmup} with total_steps={total_steps}",
            "at least 0 and less than total_steps",
        )
        self.total_steps, self.warmup, self.eta_min = total_steps, warmup, eta_min
        super().__init__(optimizer)

    def rate(self, steps: int) -> float:
        """See the class."""
        if steps < self.warmup:
            return self.base_lr * (steps + 1) / self.warmup
        done = min(1.0, (steps - self.warmup) / (self.total_steps - self.warmup))
        return self.eta_min + (self.base_lr - self.eta_min) * (1 + math.cos(math.pi * done)) / 2


class StepLR(Schedule):
    """``lr`` times ``gamma`` after every ``step_size`` steps, as ``torch.optim.lr_scheduler.StepLR``.

    Args:
        optimizer: With the first ``lr``.
        step_size: Calls of ``step()`` with the same rate, at least 1.
        gamma: The factor.
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        _require(self, step_size >= 1, f"step_size={step_size}", "at least 1")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, steps: int) -> float:
        """See the class."""
        return self.base_lr * self.gamma ** (steps // self.step_size)


class ReduceLROnPlateau(_Schedule):
    """``lr`` times ``factor`` when a metric has stopped improving, as ``torch.optim.lr_scheduler.ReduceLROnPlateau``.

    Call ``step(metric)`` after every evaluation. NaN is no improvement.

    Args:
        optimizer: Whose ``lr`` is set.
        mode: ``"min"`` where a lower metric is better, ``"max"`` where a higher one is.
        factor: Less than 1.
        patience: Evaluations in a row without improvement that are borne; the next one lowers the rate.
        threshold: What counts as improvement.
        threshold_mode: ``"rel"``: a part of the best metric; ``"abs"``: a difference to it.
        cooldown: Evaluations after a reduction that do not count.
        min_lr: The rate does not fall below it.
        eps: A smaller change of the rate is not made.

    Example:
        >>> import lazynet as ln
        >>> optimizer = ln.optim.SGD([ln.Parameter([1.0])], lr=1.0)
        >>> schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        >>> for loss in (3.0, 2.0, 2.0, 2.1):
        ...     schedule.step(loss)
        >>> optimizer.lr
        0.5
    """

    _progress = ("best", "num_bad_epochs", "cooldown_counter")

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        _require(self, mode in ("min", "max"), f"mode={mode!r}", "'min' or 'max'")
        _require(self, threshold_mode in ("rel", "abs"), f"threshold_mode={threshold_mode!r}", "'rel' or 'abs'")
        _require(self, factor < 1, f"factor={factor}", "less than 1")
        super().__init__(optimizer)
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.factor, self.patience, self.cooldown, self.min_lr, self.eps = factor, patience, cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    def _improves(self, metric: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        relative = self.threshold_mode == "rel"
        bound = self.best * (1 + sign * self.threshold) if relative else self.best + sign * self.threshold
        return metric < bound if self.mode == "min" else metric > bound

    def step(self, metrics: SupportsFloat) -> None:
        """Sets the learning rate after an evaluation whose result was ``metrics``."""
        current = float(metrics)
        if self._improves(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            lower = max(self.optimizer.lr * self.factor, self.min_lr)
            if self.optimizer.lr - lower > self.eps:
                self.optimizer.lr = lower
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
