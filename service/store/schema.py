"""The schema's migrations: upgrade, and whether it is current."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError

from service.errors import DatabaseUnavailableError
from service.store.session import engine

ROOT = Path(__file__).resolve().parents[2]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    return config


def upgrade() -> str:
    """Bring the database to the newest schema and return its revision. Safe to repeat."""
    config = _config()
    try:
        config.attributes["engine"] = engine()
        command.upgrade(config, "head")
    except OperationalError as error:
        detail = str(error.orig or error).strip().splitlines()[0]
        raise DatabaseUnavailableError(url=engine().url.render_as_string(hide_password=True), detail=detail) from error
    return head()


def head() -> str:
    """Return the newest revision that the code knows."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def current() -> str | None:
    """Return the database's revision, None when it has no schema."""
    with engine().connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()
