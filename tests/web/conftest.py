from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from service.app import make_app
from tests.factories import store


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with store(tmp_path, monkeypatch):
        yield


@pytest.fixture(scope="session")
def app() -> FastAPI:
    """The application; it keeps nothing between requests."""
    return make_app()


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    """A browser on this machine."""
    return TestClient(app, base_url="http://127.0.0.1:8321", client=("127.0.0.1", 50000), raise_server_exceptions=False)
