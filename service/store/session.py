"""The only way to the database: `read()` and `write()`. Store functions take the session and never commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.config import settings
from service.errors import DatabaseUnavailableError, StateUnwritableError

BUSY_TIMEOUT_S = 30.0


@lru_cache(maxsize=4)
def engine_for(url: str) -> Engine:
    """Return the engine of a database URL; SQLite gets WAL, foreign keys and a busy timeout."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        return create_engine(parsed, pool_pre_ping=True, connect_args={"connect_timeout": 5})
    engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_S * 1000:.0f}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    is_write = connection.get_execution_options().get("likewise_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


def engine() -> Engine:
    """Return the engine of the settings' database; StateUnwritableError when the home folder cannot be made."""
    current = settings()
    if not current.database_url:
        try:
            current.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateUnwritableError(path=current.home, detail=error.strerror) from error
    return engine_for(current.effective_database_url)


@contextmanager
def read() -> Iterator[Session]:
    """Give a session that only reads; nothing is committed."""
    with _session(is_write=False) as session:
        yield session


@contextmanager
def write() -> Iterator[Session]:
    """Give a session whose transaction is committed at the end, or rolled back when an error leaves the block."""
    with _session(is_write=True) as session:
        yield session
        session.commit()


@contextmanager
def _session(*, is_write: bool) -> Iterator[Session]:
    bound = engine().execution_options(likewise_write=is_write)
    try:
        with Session(bound, expire_on_commit=False) as session:
            yield session
    except OperationalError as error:
        raise DatabaseUnavailableError(url=_shown_url(), detail=_first_line(error)) from error


def _first_line(error: OperationalError) -> str:
    return str(error.orig or error).strip().splitlines()[0]


def _shown_url() -> str:
    return make_url(settings().effective_database_url).render_as_string(hide_password=True)


def database_now(session: Session) -> float:
    """Return seconds since the epoch on the database's clock."""
    if session.get_bind().dialect.name == "postgresql":
        return float(session.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    return float(session.execute(text("SELECT (julianday('now') - 2440587.5) * 86400.0")).scalar_one())
