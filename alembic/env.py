"""Alembic's environment for developing the packaged revisions; the database comes from SQLANE_DATABASE_URL.

Applications do not need it: they call `sqlane_sa.migrations`, or add the versions folder to their own environment.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from alembic import context
from alembic.util import CommandError

from sqlane_sa.migrations.target import configured
from sqlane_sa.schema import Tables


def database_url() -> str:
    url = os.environ.get("SQLANE_DATABASE_URL")
    if not url:
        raise CommandError("SQLANE_DATABASE_URL is not set; for example postgresql+psycopg://postgres@localhost/sqlane")
    return url


def is_ours(item: sa.schema.SchemaItem, name: str | None, kind: str, *_: object) -> bool:
    """Autogenerate looks at the queue's tables alone, and at nothing else that is in the database."""
    return kind != "table" or name in {table.name for table in tables.metadata.tables.values()}


def run_offline() -> None:
    # Other paramstyles double the percent signs in names, and a script has nobody to halve them.
    context.configure(
        url=database_url(), target_metadata=tables.metadata, literal_binds=True, dialect_opts={"paramstyle": "named"}
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    engine = sa.create_engine(database_url(), poolclass=sa.NullPool)
    with engine.connect() as conn:
        context.configure(
            connection=conn,
            target_metadata=tables.metadata,
            include_object=is_ours,
            include_schemas=tables.schema is not None,
            compare_type=True,
            compare_server_default=True,
        )
        with context.begin_transaction():
            context.run_migrations()


at = configured(context.config)
tables = Tables(at.prefix, at.schema)
if context.is_offline_mode():
    run_offline()
else:
    run_online()
