"""Readiness: whether the database is there, and has the tables that this code works on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from sqlane_sa.queue import Queue
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import Deadlines

# SQLSTATE: lost or refused connections, no room for one more, a server that starts, stops or recovers, a time limit of
# the role's.
_COMING_BACK = ("08", "53", "57P", "57014", "55P03", "25P03")
# libpq has no code for what a server says before a session begins, only the words.
_COMING_BACK_WORDS = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots", "not yet")


def check_schema(engine: Engine, queue: Queue, deadline: float) -> None:
    """Raises `SchemaError` in one sentence when the tables are behind or ahead. Workers never do DDL.

    Like every call of a worker, it ends by its deadline (seconds); and it is made outside the application's pool: after
    a fork, what is idle in there is the other process's, and the one connection of a StaticPool, or the last one of
    any, may be in a transaction of the application's, which would end with ours.
    """
    from sqlane_sa import migrations  # loads alembic, which `import sqlane_sa` must not

    with _limited(engine, deadline) as outside:
        migrations.check(outside, queue)


def is_unreachable(error: DBAPIError) -> bool:
    """Whether the database may answer later; a refusal (password, name of the database, rights) stays one."""
    code = sqlstate(error)
    if code:
        return code.startswith(_COMING_BACK)
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    message = str(error.orig)
    return "FATAL" not in message or any(words in message for words in _COMING_BACK_WORDS)


@contextmanager
def _limited(engine: Engine, seconds: float) -> Iterator[Engine]:
    """An engine like it; all that is done with it here, opening connections included, ends by the deadline."""
    deadlines = Deadlines(seconds)
    connector = Connector(engine, deadlines)
    watch = threading.Thread(target=deadlines.run, name="sqlane-start", daemon=True)
    watch.start()
    try:
        with deadlines.limit():
            yield connector.engine().execution_options(**engine.get_execution_options())
    finally:
        deadlines.stop()
        watch.join()
        connector.close()
