"""Alembic: the schema of service.store.models, on SQLite and PostgreSQL, one transaction a migration."""

from __future__ import annotations

from alembic import context

from service.store.models import Base
from service.store.session import engine


def run() -> None:
    """Run the migrations on the settings' database."""
    connectable = context.config.attributes.get("engine") or engine()
    with connectable.execution_options(likewise_write=True).connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=True,
            transaction_per_migration=True,
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


run()
