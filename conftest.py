"""Runs the tests on another device: ``pytest --device emulated``."""

from __future__ import annotations

import pytest

import lazynet as ln
from lazynet.device import register


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="the default device of graphs and parameters")


def pytest_configure(config: pytest.Config) -> None:
    from tests.emulated import EmulatedRuntime

    register("emulated", EmulatedRuntime)
    ln.set_default_device(config.getoption("--device"))
