"""The packaged revisions as an SQL script, for those who may not run them from Python."""

from __future__ import annotations

from io import StringIO

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.schema import CreateSchema

from sqlane_sa.migrations import chain
from sqlane_sa.migrations.patience import LOCK_TIMEOUT
from sqlane_sa.migrations.target import running, target_of


def sql(queue: object, start: str = "base", end: str = "head") -> str:
    """The script, one transaction, that takes the queue's tables from revision `start` to `end`, up or down.

    Needs no database. From "base" it creates a missing schema too. Raises `DefinitionError` for an unknown revision.
    """
    at, first, last = target_of(queue), chain.number(start), chain.number(end)
    output = StringIO()
    # Other paramstyles double the percent signs in names, and a script has nobody to halve them.
    context = MigrationContext.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        opts={"as_sql": True, "literal_binds": True, "output_buffer": output},
    )
    operations = Operations(context)
    with running(at, operations), context.begin_transaction():
        operations.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        if at.schema is not None and first == 0:
            operations.execute(CreateSchema(at.schema, if_not_exists=True))
        for script in chain.between(first, last):
            script.module.upgrade() if first < last else script.module.downgrade()
    return output.getvalue()
