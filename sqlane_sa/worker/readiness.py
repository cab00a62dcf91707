"""Readiness: whether the database is there, and has the tables that this code works on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.schema import REVISION
from sqlane_sa.sqlstate import UNDEFINED_TABLE, sqlstate
from sqlane_sa.values.errors import WorkerError
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import Deadlines


def check_schema(engine: Engine, queue: Queue, deadline: float) -> None:
    """Raises `SchemaError` in one sentence when the tables are behind or ahead, and `WorkerError` where this user may
    not claim. Workers never do DDL.

    Like every call of a worker, it ends by its deadline (seconds); and it is made outside the application's pool: after
    a fork, what is idle in there is the other process's, and the one connection of a StaticPool, or the last one of
    any, may be in a transaction of the application's, which would end with ours.
    """
    with _limited(engine, deadline) as outside:
        if not _is_ready(outside, queue):
            # It loads Alembic, which takes long and logs: only where there is something to say.
            from sqlane_sa import migrations

            migrations.check(outside, queue)


def _is_ready(engine: Engine, queue: Queue) -> bool:
    with engine.connect() as conn:
        try:
            revision = store.read_revision(conn, queue.tables)
            # Whatever it is: one that row level security hides looks like none.
            _refuse_without_rights(store.missing_rights(conn, queue.tables))
            return revision == REVISION
        except DBAPIError as error:
            if sqlstate(error) != UNDEFINED_TABLE:
                raise
            return False
        finally:
            # Not given back: what its isolation level would be reset to is known once the first connection of the
            # engine has been looked at, which may be under way in another thread.
            conn.invalidate()


def _refuse_without_rights(missing: Sequence[tuple[str, str]]) -> None:
    if missing:
        listed = ", ".join(f"{privilege} on {name}" for name, privilege in missing)
        raise WorkerError(f"this user has no right to {listed}; docs/roles.md has what to grant to a worker")


@contextmanager
def _limited(engine: Engine, seconds: float) -> Iterator[Engine]:
    """An engine like it; all that is done with it here, opening connections included, ends by the deadline."""
    deadlines = Deadlines(seconds)
    connector = Connector(engine, deadlines, quiet=True)
    watch = threading.Thread(target=deadlines.run, name="sqlane-start", daemon=True)
    watch.start()
    try:
        with deadlines.limit():
            yield connector.engine().execution_options(**engine.get_execution_options())
    finally:
        deadlines.stop()
        watch.join()
        connector.close()
