"""Module: an object whose attributes are parameters and modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import errors
from ._nodes import note_structure_change
from .parameter import Parameter

__all__ = ["Module"]


class Module:
    """Base of models and layers.

    Parameters and modules that are assigned to attributes, also inside lists, tuples and dicts, belong to it. Names
    are the attributes' names joined by dots, as in PyTorch.

    Example:
        >>> import lazynet as ln
        >>> class Pair(ln.Module):
        ...     def __init__(self):
        ...         self.first, self.second = ln.nn.Linear(2, 3), ln.nn.Linear(3, 1, bias=False)
        >>> [name for name, _ in Pair().named_parameters()]
        ['first.weight', 'first.bias', 'second.weight']
    """

    training: bool = True

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Parameter, Module, list, tuple, dict, bool)):
            note_structure_change()
        super().__setattr__(name, value)

    def __init_subclass__(cls, **options: Any) -> None:
        """Makes calling a module the same as calling its ``forward``, without a call in between."""
        super().__init_subclass__(**options)
        if "forward" in vars(cls):
            cls.__call__ = cls.forward  # type: ignore[method-assign]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Applies the module: calls ``forward``."""
        return self.forward(*arguments, **options)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def _children(self) -> Iterator[tuple[str, Parameter | Module]]:
        for name, value in vars(self).items():
            yield from _members(name, value)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Names and parameters, each parameter once."""
        seen: set[int] = set()
        for name, parameter in self._named("", set()):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _named(self, prefix: str, path: set[int]) -> Iterator[tuple[str, Parameter]]:
        if id(self) in path:
            return
        path = path | {id(self)}
        for name, child in self._children():
            if isinstance(child, Parameter):
                if not child.name:
                    child.name = prefix + name
                yield prefix + name, child
            else:
                yield from child._named(f"{prefix}{name}.", path)

    def parameters(self) -> list[Parameter]:
        """All parameters, each once, in the order of the attributes."""
        return [parameter for _, parameter in self.named_parameters()]

    def modules(self) -> Iterator[Module]:
        """This module and all inside it."""
        yield self
        for _, child in self._children():
            if isinstance(child, Module):
                yield from child.modules()

    def zero_grad(self) -> None:
        """Forgets the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def train(self, mode: bool = True) -> Module:
        """Switches dropout and the like on or off in this module and all inside it."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """``train(False)``."""
        return self.train(False)

    def to(self, dtype: Any) -> Module:
        """Replaces every parameter by one of another element type."""
        converted: dict[int, Parameter] = {}
        for module in self.modules():
            for name, value in list(vars(module).items()):
                setattr(module, name, _converted(value, dtype, converted))
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters by name; a parameter that has two names is there twice."""
        return {name: parameter.value.copy() for name, parameter in self._named("", set())}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copies values into the parameters; arrays or anything that NumPy turns into one, PyTorch tensors too.

        Raises:
            StateDictError: Lists every missing, unexpected and misshapen name; then nothing was changed. With
                ``strict=False`` missing and unexpected names are passed over.
        """
        own = dict(self._named("", set()))
        arrays = {name: np.asarray(value) for name, value in state.items() if name in own}
        missing = [name for name in own if name not in state] if strict else []
        unexpected = [name for name in state if name not in own] if strict else []
        misshapen = [
            f"{name} {array.shape} instead of {own[name].shape}"
            for name, array in arrays.items()
            if array.shape != own[name].shape
        ]
        problems = [
            f"{what}: {', '.join(names)}"
            for what, names in (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen))
            if names
        ]
        if problems:
            raise errors.StateDictError(f"load_state_dict into {type(self).__name__}: {'; '.join(problems)}")
        for name, array in arrays.items():
            own[name].value = array


def _members(name: str, value: Any) -> Iterator[tuple[str, Parameter | Module]]:
    if isinstance(value, (Parameter, Module)):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _members(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _members(f"{name}.{key}", item)


def _converted(value: Any, dtype: Any, done: dict[int, Parameter]) -> Any:
    if isinstance(value, Parameter):
        if id(value) not in done:
            done[id(value)] = Parameter(
                value.value, name=value.name, dtype=dtype, sparse=value.sparse, trainable=value.trainable
            )
        return done[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_converted(item, dtype, done) for item in value)
    if isinstance(value, dict):
        return {key: _converted(item, dtype, done) for key, item in value.items()}
    return value
