"""Exit 1 when the models and the migrations differ: upgrade an empty database, then compare."""

from __future__ import annotations

import os
import sys
import tempfile


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        os.environ["LIKEWISE_HOME"] = home
        os.environ.pop("LIKEWISE_DATABASE_URL", None)
        from alembic import autogenerate
        from alembic.migration import MigrationContext

        from service.store import schema
        from service.store.models import Base
        from service.store.session import engine

        schema.upgrade()
        with engine().connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            found = autogenerate.compare_metadata(context, Base.metadata)
        for difference in found:
            print(f"the models differ from the migrations: {difference}")
        print(f"migrations: {'no drift' if not found else 'DRIFT'}")
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
