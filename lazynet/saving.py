"""Checkpoints: all that training needs to go on, in one safetensors file."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from . import _checkpoint_file, errors, init
from .graph import Graph
from .module import Module
from .optim import Optimizer
from .parameter import Parameter

__all__ = ["Checkpoint", "Stateful", "load", "save"]


@runtime_checkable
class Stateful(Protocol):
    """An object whose state is a flat dict of arrays and JSON: a schedule, early stopping, one of your own."""

    def state_dict(self) -> dict[str, Any]:
        """Copies of its state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what ``state_dict()`` gave, all of it or nothing."""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds besides the values of its arrays.

    Attributes:
        step: As it was saved.
        extra: The JSON values that were saved, by name.
        kinds: The classes of what was saved, by name.
        shapes: Of all arrays, by name.
    """

    step: int | None
    extra: dict[str, Any]
    kinds: dict[str, str]
    shapes: dict[str, tuple[int, ...]]


def save(
    path: str | os.PathLike[str],
    *,
    model: Module | None = None,
    optimizer: Optimizer | None = None,
    schedule: Stateful | None = None,
    graph: Graph | None = None,
    step: int | None = None,
    **extra: Any,
) -> None:
    """Saves all that training needs to go on in one safetensors file, never a pickle; call it after ``optimizer.step()``.

    The file is written beside ``path``, forced to the disk and renamed, so that at every moment ``path`` is the old
    file or the new one. Saved too is the generator of :func:`lazynet.seed`; LazyNet draws from no other, so the states of
    ``random`` and ``numpy.random`` are yours to save.

    Args:
        path: Of the file, by custom ``*.safetensors``.
        model: Its parameters, without gradients.
        optimizer: Its state, by the names of the parameters in the modules that are saved with it.
        schedule: Of the learning rate, or ``ReduceLROnPlateau``.
        graph: How far its dropout has come.
        step: How far training has come.
        **extra: More modules, parameters, optimizers, graphs and objects with a ``state_dict``, and JSON values, which
            come back as JSON gives them: tuples as lists, keys as text.

    Raises:
        CheckpointError: The file cannot be written; the one that was there is as it was.

    Example:
        >>> import tempfile, lazynet as ln
        >>> path = tempfile.mkdtemp() + "/last.safetensors"
        >>> model = ln.nn.Linear(3, 2)
        >>> optimizer = ln.optim.Adam(model.parameters(), lr=0.01)
        >>> ln.save(path, model=model, optimizer=optimizer, step=100, accuracy=0.9)
        >>> ln.load(path, model=model, optimizer=optimizer).step
        100
        >>> ln.load(path).shapes
        {'model.weight': (2, 3), 'model.bias': (2,)}
    """
    given = _given(model, optimizer, schedule, graph, extra)
    names = _parameter_names(given)
    arrays: dict[str, np.ndarray] = {}
    sections: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if "." in name:
            raise errors.NodeValueError(f"save: the name {name!r} is given; one without a dot is required")
        state = _state(value, names, "save")
        if state is None:
            values[name] = _json(name, value)
            continue
        numbers = {}
        for key, item in state.items():
            if isinstance(item, np.ndarray) and item.dtype.kind in "fiub":
                arrays[f"{name}.{key}"] = item
            else:
                numbers[key] = _json(f"{name}.{key}", item)
        sections[name] = {"kind": type(value).__name__, "state": numbers}
    content = {
        "step": None if step is None else operator.index(step),
        "extra": values,
        "generator": init.generator().bit_generator.state,
        "sections": sections,
    }
    _checkpoint_file.write(path, content, arrays)


def load(
    path: str | os.PathLike[str],
    *,
    model: Module | None = None,
    optimizer: Optimizer | None = None,
    schedule: Stateful | None = None,
    graph: Graph | None = None,
    cast: bool = False,
    **extra: Any,
) -> Checkpoint:
    """Puts what :func:`save` saved into objects made as they were then; without objects, only looks.

    With the same number of threads, training that goes on gives the same bits as training that never stopped. A model
    alone, for inference, may be loaded from any checkpoint. With an optimizer, the generator of :func:`lazynet.seed` goes
    on too. Arguments of constructors, such as the betas of Adam, are not restored; learning rates are.

    Args:
        path: Of the file.
        model: As it was saved; so are the others.
        optimizer: Give the modules with its parameters too.
        schedule: See :func:`save`.
        graph: See :func:`save`.
        cast: True converts between float32 and float64; False refuses.
        **extra: More objects, by the names that they were saved under.

    Returns:
        Step, JSON values, and what the file holds.

    Raises:
        CheckpointError: The file is missing, damaged, of another program or of a newer format.
        StateDictError: Lists every missing, unexpected, misshapen and mistyped name; then nothing was changed.
    """
    targets = _given(model, optimizer, schedule, graph, extra)
    file = _checkpoint_file.read(path, lambda name: name.partition(".")[0] in targets)
    sections = file.content["sections"]
    names = _parameter_names(targets)
    states = {name: dict(section["state"]) for name, section in sections.items()}
    for name, array in file.arrays.items():
        section, _, key = name.partition(".")
        states[section][key] = array
    problems = []
    for name, target in targets.items():
        if name not in sections:
            problem = f"it is not in the file, which holds {', '.join(sections) or 'no objects'}"
        else:
            problem = _problem(target, sections[name]["kind"], states[name], names, cast)
        if problem:
            problems.append(f"{name}: {problem}")
    if problems:
        raise errors.StateDictError("; ".join([f"load: {os.fspath(path)} does not fit", *problems]))
    _restore(targets, states, names)
    if any(isinstance(target, Optimizer) for target in targets.values()):
        init.generator().bit_generator.state = file.content["generator"]
    kinds = {name: section["kind"] for name, section in sections.items()}
    return Checkpoint(file.content["step"], file.content["extra"], kinds, file.shapes)


def _given(
    model: Module | None,
    optimizer: Optimizer | None,
    schedule: Stateful | None,
    graph: Graph | None,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """All that is saved or loaded, by name."""
    named = {"model": model, "optimizer": optimizer, "schedule": schedule, "graph": graph}
    result = {name: value for name, value in named.items() if value is not None} | dict(extra)
    return {name: _Single(value) if isinstance(value, Parameter) else value for name, value in result.items()}


class _Single(Module):
    """A parameter that stands alone."""

    def __init__(self, parameter: Parameter) -> None:
        self.value = parameter


def _parameter_names(given: Mapping[str, Any]) -> dict[Parameter, str]:
    """What optimizers' states call parameters: of several names the first in the alphabet, whatever their order."""
    names: dict[Parameter, str] = {}
    for section, module in given.items():
        if isinstance(module, Module):
            for key, parameter in module._named("", set()):
                name = f"{section}.{key}"
                names[parameter] = min(name, names.get(parameter, name))
    return names


def _names_of(optimizer: Optimizer, names: Mapping[Parameter, str], what: str) -> list[str]:
    unknown = [parameter.name or repr(parameter) for parameter in optimizer.parameters if parameter not in names]
    if unknown:
        raise errors.StateDictError(
            f"{what}: the optimizer updates {', '.join(unknown)}, of no module that is given; the modules of all its "
            "parameters are required"
        )
    return [names[parameter] for parameter in optimizer.parameters]


def _state(value: Any, names: Mapping[Parameter, str], what: str) -> dict[str, Any] | None:
    """The state of an object, None of a JSON value."""
    if isinstance(value, Optimizer):
        return value._state_dict(_names_of(value, names, what))
    if isinstance(value, Graph):
        return {"random_state": value.random_state}
    return value.state_dict() if isinstance(value, Stateful) else None


def _json(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=operator.methodcaller("item")))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise errors.NodeTypeError(
            f"save: {name} is {type(value).__name__}; a module, an optimizer, an object with state_dict() or a JSON value "
            "is required"
        ) from error


def _problem(target: Any, kind: str, state: dict[str, Any], names: Mapping[Parameter, str], cast: bool) -> str:
    """What keeps a state from being loaded; empty where nothing is known that does."""
    if isinstance(target, Module):
        return target._differences(state, cast=cast)
    if not isinstance(target, (Optimizer, Graph, Stateful)):
        return (
            f"{type(target).__name__} is given; a module, an optimizer or an object with load_state_dict() is required"
        )
    if kind != type(target).__name__:
        return f"{type(target).__name__} is given; {kind}, as in the file, is required"
    if isinstance(target, Optimizer):
        return target._differences(state, _names_of(target, names, "load"), cast=cast)
    return ""


def _restore(targets: Mapping[str, Any], states: Mapping[str, dict[str, Any]], names: Mapping[Parameter, str]) -> None:
    """Loads all states, or none: first those that only their objects can check."""
    before: list[tuple[Stateful, dict[str, Any]]] = []
    for name, target in targets.items():
        if isinstance(target, (Module, Optimizer, Graph)):
            continue
        before.append((target, target.state_dict()))
        try:
            target.load_state_dict(states[name])
        except Exception as error:
            for changed, state in reversed(before):
                changed.load_state_dict(state)
            raise errors.StateDictError(f"load: {name}: {error}") from error
    for name, target in targets.items():
        if isinstance(target, Optimizer):
            target._load_state_dict(states[name], _names_of(target, names, "load"))
        elif isinstance(target, Graph):
            target.set_seed(states[name]["random_state"])
        elif isinstance(target, Module):
            target.load_state_dict(states[name])
