"""The transactions of handlers: how they begin and end, and that only the worker commits them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.values.errors import SqlaneError
from sqlane_sa.worker.deadlines import Deadlines
from sqlane_sa.worker.handler_engine import HandlerEngine


class CommitRefusedError(SqlaneError):
    """A transactional handler tried to commit: its transaction commits once, together with the job's completion."""

    def __init__(self) -> None:
        super().__init__(
            "a transactional handler must not commit its transaction: that is done once, with the completion of the "
            "job; use a savepoint (ctx.connection.begin_nested() or ctx.session), or another connection"
        )


_LAST_WORDS = ("25006", "57P")
"""SQLSTATE: read-only, and operator intervention. A connection that is gone is known to SQLAlchemy by itself."""

Transaction = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction; leaving it commits or rolls back."""


@contextmanager
def read_committed(engine: Engine, deadlines: Deadlines) -> Iterator[Connection]:
    """A transaction on the application's engine, whatever its isolation level (or AUTOCOMMIT); the level is set on the
    connection, which overrules what an engine made by execution_options sets, and the pool puts it back. (That of a
    `HandlerEngine` has it already.)

    Its begin and its end are limited; what the handler does within takes as long as it takes.
    """
    with ExitStack() as ending:
        with deadlines.limit():
            conn = engine.connect()
        with conn:
            if not isinstance(engine, HandlerEngine) or "isolation_level" in conn.get_execution_options():
                conn.execution_options(isolation_level="READ COMMITTED")
            try:
                with conn.begin():
                    try:
                        yield conn
                    finally:
                        # Commit or rollback, and the return to the pool. One call, where the last step was limited.
                        if deadlines.here is None:
                            ending.enter_context(deadlines.limit(conn))
            except BaseException as error:
                if _ends_the_session(error):
                    conn.invalidate()
                raise


def _ends_the_session(error: BaseException | None) -> bool:
    """Whether it, or what led to it, says that the next transaction needs another session: this one is read-only, or
    its server is shutting down."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, DBAPIError) and sqlstate(error).startswith(_LAST_WORDS):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def only_ours(conn: Connection) -> Iterator[None]:
    """Within, a commit is refused: a handler's own would keep what it wrote without the completion of its job.

    Also where the handler does not mind that it was refused.
    """
    refused = False

    def refuse(_: Connection) -> None:
        nonlocal refused
        refused = True
        raise CommitRefusedError

    error: BaseException | None = None
    try:
        with _on_commit(conn, refuse):
            yield
    except BaseException as other:
        error = other
    if refused:
        # SQLAlchemy takes the transaction for ended, and the server does not: it ends with its session.
        conn.invalidate()
        raise CommitRefusedError from error
    if error is not None:
        raise error


@contextmanager
def _on_commit(conn: Connection, refuse: Callable[[Connection], None]) -> Iterator[None]:
    if isinstance(conn.engine, HandlerEngine):
        with conn.engine.on_commit(conn, refuse):
            yield
        return
    event.listen(conn, "commit", refuse)
    try:
        yield
    finally:
        event.remove(conn, "commit", refuse)
