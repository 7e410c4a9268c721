"""The examples in the docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import service.ingest

MODULES = [
    "service.signature",
    *(f"service.ingest.{module.name}" for module in pkgutil.iter_modules(service.ingest.__path__)),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
