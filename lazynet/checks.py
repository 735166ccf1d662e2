"""Checks that a user runs on a model: batched equals one by one, gradients equal finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import errors
from .graph import Graph
from .node import Node
from .parameter import Parameter, SparseRows

__all__ = ["check_batching", "check_gradients"]

Build = Callable[[Graph], Node]


def _dense(parameter: Parameter) -> np.ndarray:
    gradient = parameter.grad
    if gradient is None:
        return np.zeros(parameter.shape, parameter.dtype)
    if isinstance(gradient, SparseRows):
        return gradient.to_dense(parameter.shape[0])
    return gradient.copy()


def _run(build: Build, parameters: Sequence[Parameter], dtype: Any, **options: Any) -> tuple[float, list[np.ndarray]]:
    for parameter in parameters:
        parameter.zero_grad()
    graph = Graph(dtype=dtype, **options)
    loss = build(graph)
    graph.backward(loss)
    gradients = [_dense(parameter) for parameter in parameters]
    for parameter in parameters:
        parameter.zero_grad()
    return loss.item(), gradients


def check_batching(
    build: Build, parameters: Sequence[Parameter], rtol: float = 1e-4, atol: float = 1e-5, seed: int = 0
) -> None:
    """Builds a loss under every policy and compares it, and every gradient, with one node at a time.

    Args:
        build: Makes the loss in the graph that it is given; called several times.
        parameters: Whose gradients are compared; what they hold is cleared.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        seed: Of dropout, the same each time.

    Raises:
        GraphError: They differ; names the policy and the parameter.
    """
    dtype = parameters[0].dtype if parameters else np.float32
    expected_loss, expected = _run(build, parameters, dtype, policy="none", seed=seed)
    for policy in ("depth", "agenda", "lookahead"):
        loss, gradients = _run(build, parameters, dtype, policy=policy, seed=seed)
        if not np.allclose(loss, expected_loss, rtol, atol, equal_nan=True):
            raise errors.GraphError(f"check_batching: loss {loss} under {policy}, {expected_loss} one node at a time")
        for parameter, gradient, wanted in zip(parameters, gradients, expected, strict=True):
            if not np.allclose(gradient, wanted, rtol, atol, equal_nan=True):
                worst = float(np.abs(gradient - wanted).max())
                raise errors.GraphError(f"check_batching: gradients of {parameter!r} differ by {worst} under {policy}")


def check_gradients(
    build: Build, parameters: Sequence[Parameter], step: float = 1e-6, tolerance: float = 1e-5, seed: int = 0
) -> None:
    """Compares gradients with central finite differences in one random direction a parameter, in float64.

    Args:
        build: Makes the loss in the graph that it is given; called several times.
        parameters: float64 parameters.
        step: Length of the step.
        tolerance: Largest difference, relative to the larger of 1 and the derivative.
        seed: Of the directions and of dropout.

    Raises:
        GraphError: They differ; names the parameter.
    """
    for parameter in parameters:
        if parameter.dtype != np.float64:
            raise errors.NodeTypeError(f"check_gradients: {parameter!r} is given; float64 parameters are required")
    _, gradients = _run(build, parameters, np.float64, seed=seed)
    rng = np.random.default_rng(seed)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = rng.standard_normal(parameter.shape)
        start = parameter.value.copy()
        losses = []
        for sign in (1, -1):
            parameter.value = start + sign * step * direction
            losses.append(build(Graph(dtype=np.float64, train=True, seed=seed)).item())
        parameter.value = start
        numeric = (losses[0] - losses[1]) / (2 * step)
        analytic = float((gradient * direction).sum())
        if abs(numeric - analytic) > tolerance * max(1.0, abs(numeric)):
            raise errors.GraphError(
                f"check_gradients: {parameter!r} has derivative {analytic}; finite differences give {numeric}"
            )
