"""Readiness: whether the database is there, and has the tables that this code works on."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import NullPool, QueuePool

from sqlane_sa.queue import Queue
from sqlane_sa.sqlstate import sqlstate

# SQLSTATE: lost or refused connections, no room for one more, and a server that starts, stops or recovers.
_COMING_BACK = ("08", "53", "57P")
# libpq has no code for what a server says before a session begins, only the words.
_COMING_BACK_WORDS = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots", "not yet")


def check_schema(engine: Engine, queue: Queue) -> None:
    """Raises `SchemaError` in one sentence when the tables are behind or ahead. Workers never do DDL."""
    try:
        _check(engine, queue)
    except DBAPIError as error:
        # A connection that broke while it was idle in the application's pool takes the whole pool with it.
        if not error.connection_invalidated:
            raise
        _check(engine, queue)


def is_unreachable(error: DBAPIError) -> bool:
    """Whether the database may answer later; a refusal (password, name of the database, rights) stays one."""
    code = sqlstate(error)
    if code:
        return code.startswith(_COMING_BACK)
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    message = str(error.orig)
    return "FATAL" not in message or any(words in message for words in _COMING_BACK_WORDS)


def _check(engine: Engine, queue: Queue) -> None:
    from sqlane_sa import migrations  # loads alembic, which `import sqlane_sa` must not

    migrations.check(_without_idle_connections(engine), queue)


def _without_idle_connections(engine: Engine) -> Engine:
    """The engine, or one like it outside its pool: after a fork, what is idle in there is the other process's."""
    pool = engine.pool
    if not (isinstance(pool, QueuePool) and pool.checkedin()):
        return engine
    outside = NullPool(pool._creator, dialect=engine.dialect, _dispatch=pool.dispatch)
    return Engine(outside, engine.dialect, engine.url).execution_options(**engine.get_execution_options())
