"""The optimizers and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import errors
from .._core import check, ffi, last_error, lib
from .._state_dict import Expected, differences
from ..device import Elements
from ..parameter import Parameter

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "clip_grad_norm"]


def _list_of(parameters: Iterable[Parameter]) -> list[Parameter]:
    try:
        result = list(parameters)
    except TypeError:
        raise errors.NodeTypeError(
            f"optimizer: {type(parameters).__name__} is given; parameters, as of model.parameters(), are required"
        ) from None
    for parameter in result:
        if not isinstance(parameter, Parameter):
            raise errors.NodeTypeError(f"optimizer: {type(parameter).__name__} is given; parameters are required")
    return result


def _norm(parameters: list[Parameter]) -> float:
    out = ffi.new("double *")
    check(lib.ln_gradient_norm([p._core for p in parameters], len(parameters), out))
    return float(out[0])


def clip_grad_norm(parameters: Iterable[Parameter], max_norm: float) -> float:
    """Scales dense gradients in place so that the 2-norm of all together is at most ``max_norm``; returns the norm.

    Gradients of sparse tables cannot be scaled in place: with those, use ``optimizer.step(max_norm=...)``.
    """
    chosen = _list_of(parameters)
    if any(p.sparse for p in chosen):
        raise errors.NodeTypeError("clip_grad_norm: a sparse table is given; use optimizer.step(max_norm=...)")
    norm = _norm(chosen)
    if norm > max_norm:
        for parameter in chosen:
            gradient = parameter.grad
            if isinstance(gradient, np.ndarray):
                parameter._set_gradient(gradient * (max_norm / norm))
    return norm


class Optimizer:
    """Base: state a parameter and one update of all that have a gradient.

    Attributes:
        lr: The learning rate; may be set between steps.
        parameters: What it updates.
    """

    _kind = 0
    _slots: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[Parameter], lr: float, **hyperparameters: float) -> None:
        self.parameters = list(dict.fromkeys(_list_of(parameters)))  # one that is shared is updated once
        if not self.parameters:
            raise errors.NodeValueError("optimizer: no parameters are given")
        if not lr >= 0:
            raise errors.NodeValueError(f"optimizer: lr={lr} is given; at least 0 is required")
        self.lr = lr
        self._hyperparameters = ffi.new("ln_hyperparameters *", hyperparameters)
        self._cores = [parameter._core for parameter in self.parameters]
        core = lib.ln_optimizer_create(self._kind, self._cores, len(self._cores))
        if core == ffi.NULL:
            raise last_error()
        self._core = ffi.gc(core, lib.ln_optimizer_release)

    def step(self, max_norm: float | None = None) -> float | None:
        """Updates every parameter that has a gradient, then forgets the gradients.

        Args:
            max_norm: Scale the gradients first so that the 2-norm of all together is at most this.

        Returns:
            With ``max_norm``, the norm before scaling.
        """
        self._require_unconverted()
        norm = None
        scale = 1.0
        if max_norm is not None:
            norm = _norm(self.parameters)
            if norm > max_norm:
                scale = max_norm / norm
        self._hyperparameters.learning_rate = self.lr
        check(lib.ln_optimizer_step(self._core, self._hyperparameters, scale))
        return norm

    def _require_unconverted(self) -> None:
        for parameter, core in zip(self.parameters, self._cores, strict=True):
            if parameter._core is not core:
                raise errors.NodeTypeError(
                    f"optimizer: parameter {parameter.name} became {parameter.dtype} on {parameter.device.name} after the "
                    "optimizer was made; make the optimizer after that"
                )

    def zero_grad(self) -> None:
        """Forgets the gradients; ``step()`` does so too."""
        for parameter in self.parameters:
            parameter.zero_grad()

    def _state(self, index: int, slot: int) -> Elements:
        parameter = self.parameters[index]
        address = lib.ln_optimizer_state(self._core, index, slot)
        if address == ffi.NULL:
            raise last_error()
        return Elements(parameter.device, address, parameter.shape, parameter.dtype)

    def state_dict(self) -> dict[str, Any]:
        """The learning rate, and for every parameter by its place its step count and copies of its state."""
        return self._state_dict(self._places())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict()`` gave; hyperparameters other than ``lr`` stay what they are.

        Raises:
            StateDictError: The state is of other parameters; then nothing was changed.
        """
        if not isinstance(state, Mapping):
            raise errors.StateDictError(f"load_state_dict: {type(state).__name__} is given; a mapping is required")
        if problems := self._differences(state, self._places()):
            raise errors.StateDictError(f"load_state_dict into {type(self).__name__}: {problems}")
        self._load_state_dict(state, self._places())

    def _places(self) -> list[str]:
        return [str(index) for index in range(len(self.parameters))]

    def _state_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """The state by what the parameters are called."""
        self._require_unconverted()
        state: dict[str, Any] = {"lr": self.lr}
        for index, name in enumerate(names):
            steps = int(lib.ln_optimizer_steps(self._core, index))
            state[f"{name}.steps"] = steps
            if steps:
                for slot, kind in enumerate(self._slots):
                    state[f"{name}.{kind}"] = self._state(index, slot).read()
        return state

    def _differences(self, state: Mapping[str, Any], names: Sequence[str], **options: bool) -> str:
        """What keeps ``state`` from being loaded; empty where nothing does."""
        self._require_unconverted()
        expected = {"lr": Expected()}
        for name, parameter in zip(names, self.parameters, strict=True):
            expected[f"{name}.steps"] = Expected()
            if np.any(state.get(f"{name}.steps", 0)):
                for kind in self._slots:
                    expected[f"{name}.{kind}"] = Expected(parameter.shape, parameter.dtype)
        return differences(expected, state, **options)

    def _load_state_dict(self, state: Mapping[str, Any], names: Sequence[str]) -> None:
        steps = [int(state[f"{name}.steps"]) for name in names]
        used = [new or lib.ln_optimizer_steps(self._core, index) for index, new in enumerate(steps)]
        # All memory before any change.
        slots = [
            (self._state(index, slot), state.get(f"{name}.{kind}", 0))
            for index, name in enumerate(names)
            if used[index]
            for slot, kind in enumerate(self._slots)
        ]
        for memory, values in slots:
            memory.write(values)
        for index, count in enumerate(steps):
            check(lib.ln_optimizer_set_steps(self._core, index, count))
        self.lr = float(state["lr"])


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as ``torch.optim.SGD`` defines it (Sutskever et al. 2013)."""

    _kind = 0
    _slots: tuple[str, ...] = ("momentum",)

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            parameters,
            lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
        if momentum == 0:
            self._slots = ()


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011)."""

    _kind = 1
    _slots = ("sum",)

    def __init__(
        self, parameters: Iterable[Parameter], lr: float = 0.01, eps: float = 1e-10, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, epsilon=eps, weight_decay=weight_decay)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

    _kind = 2
    _slots = ("first_moment", "second_moment")

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, beta1=betas[0], beta2=betas[1], epsilon=eps, weight_decay=weight_decay)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    _kind = 3

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)
