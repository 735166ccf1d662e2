"""Module: an object whose attributes are parameters and modules."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from . import errors
from ._core import dtype_code
from ._nodes import Identities, note_structure_change
from ._state_dict import Expected, differences
from .device import Device, is_device_name
from .device import device as find_device
from .parameter import Parameter

__all__ = ["OWNED_TRACES", "Contents", "Module", "RecordedReads", "plain_key"]

_TRACED = "_traced_attributes"
#: Where an object keeps what its cells were traced as; csrc/python/cell.cc reads it.
OWNED_TRACES = "_lazynet_cells"


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
        if isinstance(value, (Parameter, Module, list, tuple, dict, bool)) or name in vars(self).get(_TRACED, ()):
            note_structure_change()
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        note_structure_change()
        super().__delattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which trace their cells themselves."""
        return {name: value for name, value in vars(self).items() if name not in (_TRACED, OWNED_TRACES)}

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

    def to(self, *targets: Any) -> Module:
        """Moves every parameter to a device, gives it another element type, or both; an optimizer is to be made after that.

        Args:
            targets: A device or its name, an element type, or one of each: ``model.to("cuda")``,
                ``model.to("float64")``, ``model.to("cpu", np.float32)``.
        """
        devices = [each for each in targets if isinstance(each, Device) or _names_device(each)]
        dtypes = [each for each in targets if each not in devices]
        if not targets or len(devices) > 1 or len(dtypes) > 1:
            raise errors.NodeTypeError(
                f"to: {targets!r} is given; a device, an element type, or one of each is required"
            )
        dtype, device = (dtypes or [None])[0], find_device(devices[0]) if devices else None
        if dtype is not None:
            dtype_code(dtype)  # before anything is changed
        for parameter in self.parameters():
            parameter.convert(dtype, device)
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
        if not isinstance(state, Mapping):
            raise errors.StateDictError(
                f"load_state_dict: {type(state).__name__} is given; a mapping of names to arrays is required"
            )
        if problems := self._differences(state, strict=strict):
            raise errors.StateDictError(f"load_state_dict into {type(self).__name__}: {problems}")
        for name, parameter in self._named("", set()):
            if name in state:
                parameter.value = state[name]

    def _differences(self, state: Mapping[str, Any], **options: bool) -> str:
        """What keeps ``state`` from being loaded; empty where nothing does."""
        expected = {name: Expected(each.shape, each.dtype) for name, each in self._named("", set())}
        return differences(expected, state, **options)


def _names_device(target: Any) -> bool:
    return isinstance(target, str) and is_device_name(target)


def _members(name: str, value: Any) -> Iterator[tuple[str, Parameter | Module]]:
    if isinstance(value, (Parameter, Module)):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _members(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _members(f"{name}.{key}", item)


class RecordedReads:
    """While it is entered, modules remember which of their attributes are read: what a cell was traced with.

    Setting one of them later makes cells be traced again. Lists and the like change without being set; what they hold is
    in ``contents()``.
    """

    _lock, _entered, _in_thread = threading.Lock(), 0, threading.local()

    def __init__(self) -> None:
        self._changeable: dict[tuple[int, str], Module] = {}

    def __enter__(self) -> RecordedReads:
        with self._lock:
            RecordedReads._entered += 1
            Module.__getattribute__ = _recording_read  # type: ignore[method-assign, assignment]
        self._outer = self.current()
        self._in_thread.reads = self
        return self

    def __exit__(self, *_: object) -> None:
        self._in_thread.reads = self._outer
        with self._lock:
            RecordedReads._entered -= 1
            if RecordedReads._entered == 0:
                del Module.__getattribute__

    @classmethod
    def current(cls) -> RecordedReads | None:
        """The one that this thread has entered last."""
        reads: RecordedReads | None = getattr(cls._in_thread, "reads", None)
        return reads

    def add(self, module: Module, name: str) -> None:
        """Called for every attribute that is read."""
        if _can_change(_attribute(module, name)):
            self._changeable[id(module), name] = module

    def contents(self) -> Contents | None:
        """What the lists and the like hold; None where there are none.

        Raises:
            OverflowError: They hold too much to be compared at every call.
        """
        held = [(module, name) for (_, name), module in self._changeable.items()]
        return Contents(held) if held else None


def _recording_read(module: Module, name: str) -> Any:
    if not name.startswith("__"):
        object.__getattribute__(module, "__dict__").setdefault(_TRACED, set()).add(name)
        reads = RecordedReads.current()
        if reads is not None:
            reads.add(module, name)
    return object.__getattribute__(module, name)


class Contents:
    """What lists, dicts and sets in attributes of modules held; called, whether they still do.

    Attributes:
        identities: Answers the same at once where they hold the same objects, and no where they may hold equal numbers.
    """

    _MOST = 1000

    def __init__(self, attributes: list[tuple[Module, str]]) -> None:
        self._attributes = [(weakref.ref(module), name) for module, name in attributes]
        self.identities = Identities()
        self._was, containers = self._now()
        self.identities.take(containers)

    def __call__(self) -> bool:
        """Whether all hold the same now."""
        if self.identities():
            return True
        try:
            now, containers = self._now()
        except OverflowError:
            return False
        if now == self._was:  # other objects of the same numbers
            self.identities.take(containers)
        return now == self._was

    def _now(self) -> tuple[list[Hashable], list[Any]]:
        """What they hold, numbers by value and objects by identity; and the lists, dicts and sets themselves."""
        containers: list[Any] = []
        count = 0

        def of(value: Any, depth: int) -> Hashable:
            nonlocal count
            count += 1
            if count > self._MOST:
                raise OverflowError(
                    f"a list, dict or set among the attributes that it reads holds more than {self._MOST} items, which "
                    "would have to be compared at every call"
                )
            if isinstance(value, (int, float, complex, str, bytes, np.generic, type(None))):
                return plain_key(value)
            if depth == 16 or not isinstance(value, (list, dict, set, deque, tuple, frozenset)):
                return id(value)
            if not isinstance(value, (tuple, frozenset)):
                containers.append(value)
            items = [of(item, depth + 1) for item in value]
            if isinstance(value, dict):
                items += [of(item, depth + 1) for item in value.values()]
            return type(value), frozenset(items) if isinstance(value, (set, frozenset)) else tuple(items)

        modules = [(reference(), name) for reference, name in self._attributes]
        now = [of(None if module is None else _attribute(module, name), 0) for module, name in modules]
        return now, containers


def plain_key(value: Any) -> Hashable:
    """Stands for a value where equal ones must also be of one type and sign: 1, True, 1.0; 0.0, -0.0."""
    return type(value), float.hex(value) if isinstance(value, float) else value


def _attribute(module: Module, name: str) -> Any:
    """As it is stored, in the module or its classes; nothing of the user's is called."""
    own = object.__getattribute__(module, "__dict__")
    if name in own:
        return own[name]
    return next((vars(kind)[name] for kind in type(module).__mro__ if name in vars(kind)), None)


def _can_change(value: Any, depth: int = 0) -> bool:
    """Whether it is a list, dict or set, or a tuple that one is in."""
    if isinstance(value, tuple) and depth < 16:
        return any(_can_change(item, depth + 1) for item in value)
    return isinstance(value, (list, dict, set, deque))
