from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories import store


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with store(tmp_path, monkeypatch):
        yield
