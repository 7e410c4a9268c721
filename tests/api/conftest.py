from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.app import make_app
from tests.factories import store

Call = Callable[..., TestClient]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with store(tmp_path, monkeypatch):
        yield


@pytest.fixture
def client() -> TestClient:
    """A program on this machine."""
    return TestClient(make_app(), base_url="http://127.0.0.1:8321", client=("127.0.0.1", 50000))


@pytest.fixture
def far_client() -> TestClient:
    """A program on another machine."""
    return TestClient(make_app(), base_url="http://likewise.example:8321", client=("192.0.2.7", 50000))
