"""The four things a job can be enqueued on, and the one a store operation needs: a `Connection` in a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from sqlalchemy import Connection
from sqlalchemy.util.concurrency import in_greenlet

from sqlane_sa.schema import Tables
from sqlane_sa.values.errors import AutocommitError, HandleError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

Result = TypeVar("Result")

_SYNC = "a Session, scoped_session or Connection"
_ASYNC = "an AsyncSession or AsyncConnection"


def connection_of(on: object, tables: Tables, method: str, owner: object = "queue") -> Connection:
    """The connection of `on`, inside its transaction; nothing of a session is flushed. `owner` is what has the method
    that was called, for messages.

    Raises `HandleError` for anything but a Session, scoped_session or Connection of PostgreSQL, and `AutocommitError`.
    """
    if isinstance(on, Connection):
        _check_dialect(on.dialect, on, method)
        conn = on
    elif _is_session(on):
        # The clause lets a session with several binds choose the one that the queue's tables are bound to.
        _check_dialect(on.get_bind(clause=tables.jobs).dialect, on, method)
        conn = on.connection(bind_arguments={"clause": tables.jobs})
    else:
        raise _wrong_handle(on, method, owner)
    _refuse_autocommit(conn)
    return conn


def refuse_wrong(on: object, method: str, owner: object = "queue") -> None:
    """Raises `HandleError` for what `connection_of` takes for no handle, and touches nothing of one."""
    if not (isinstance(on, Connection) or _is_session(on)):
        raise _wrong_handle(on, method, owner)


def refuse_wrong_async(on: object, method: str, owner: object = "queue") -> None:
    """`refuse_wrong` for what `run_on` takes."""
    if getattr(on, "run_sync", None) is None or not _is_async(on):
        hint = _opening(on, method, owner) or f"on {_SYNC} call {_callable(owner)}.{method}() without await"
        raise HandleError(f"{owner}.a{method}() takes {_ASYNC} first, and got {type(on).__name__}; {hint}")


def reading_connection(on: object, tables: Tables, method: str) -> Connection:
    """The connection of `on`, for a look; nothing of a session is flushed. Raises `HandleError`."""
    if isinstance(on, Connection):
        _refuse_other_databases(on.dialect, on, method)
        return on
    if _is_session(on):
        _refuse_other_databases(on.get_bind(clause=tables.jobs).dialect, on, method)
        return on.connection(bind_arguments={"clause": tables.jobs})
    raise HandleError(
        f"queue.{method}() takes {_SYNC}, and got {type(on).__name__}; on {_ASYNC} use "
        f"`await connection.run_sync(lambda sync: queue.{method}(sync, ...))`, and on an engine "
        f"`with engine.connect() as conn: queue.{method}(conn, ...)`"
    )


async def run_on(on: object, method: str, operation: Callable[[Any], Result], owner: object = "queue") -> Result:
    """Run `operation(sync session or connection)` inside the greenlet of an AsyncSession or AsyncConnection.

    Raises `HandleError` for anything else.
    """
    refuse_wrong_async(on, method, owner)
    run_sync: Callable[[Callable[[Any], Result]], Awaitable[Result]] = on.run_sync  # type: ignore[attr-defined]
    return await run_sync(operation)


def _is_session(on: object) -> TypeGuard[Session | scoped_session[Session]]:
    """Loads no ORM: where there is a session, somebody has."""
    if not any(base.__module__.startswith("sqlalchemy.orm.") for base in type(on).__mro__):
        return False
    from sqlalchemy.orm import Session, scoped_session

    return isinstance(on, Session | scoped_session)


def _is_async(on: object) -> bool:
    """By the name of its module: `import sqlane_sa` must not load sqlalchemy.ext.asyncio."""
    return any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(on).__mro__)


def _check_dialect(dialect: Any, on: object, method: str) -> None:
    _refuse_other_databases(dialect, on, method)
    if dialect.is_async and not in_greenlet():
        raise HandleError(
            f"this {type(on).__name__} belongs to an async engine and works only inside run_sync; "
            f"use `await queue.a{method}(async_session, ...)`, "
            f"or `await async_session.run_sync(lambda session: queue.{method}(session, ...))`"
        )


def _refuse_other_databases(dialect: Any, on: object, method: str) -> None:
    if dialect.name != "postgresql":
        raise HandleError(
            f"queue.{method}() needs PostgreSQL, and this {type(on).__name__} is one of {dialect.name}; give it one of "
            'the database with the tables of the queue: create_engine("postgresql+psycopg://...")'
        )


def _wrong_handle(on: object, method: str, owner: object) -> HandleError:
    named = _callable(owner)
    if opening := _opening(on, method, owner):
        hint = f"; {opening}"
    elif _is_async(on):
        hint = f"; use `await {named}.a{method}(...)` for {_ASYNC}"
    elif hasattr(on, "connect"):
        hint = f"; open a transaction first: `with engine.begin() as conn: {named}.{method}(conn, ...)`"
    else:
        hint = ""
    return HandleError(f"{owner}.{method}() takes {_SYNC} first, and got {type(on).__name__}{hint}")


def _opening(on: object, method: str, owner: object) -> str:
    """How to get a session from what makes them, a sessionmaker or an async one; "" for anything else."""
    kinds = {base.__name__ for base in type(on).__mro__ if base.__module__.startswith("sqlalchemy.")}
    if "async_sessionmaker" in kinds:
        call = f"await {_callable(owner)}.a{method}(session, ...)"
        return f"open one: `async with maker() as session, session.begin(): {call}`"
    if "sessionmaker" in kinds:
        return f"open one: `with maker() as session, session.begin(): {_callable(owner)}.{method}(session, ...)`"
    return ""


def _callable(owner: object) -> str:
    """What the code that a message suggests calls the owner: a handle is named as its function, and else `job`."""
    name = owner if isinstance(owner, str) else getattr(owner, "__name__", "")
    return name if isinstance(name, str) and name.isidentifier() else "job"


def _refuse_autocommit(conn: Connection) -> None:
    if in_autocommit(conn):
        raise AutocommitError(
            "this connection is in AUTOCOMMIT, so that a rollback could not take the job back; enqueue on a connection "
            'with a transaction, for example engine.execution_options(isolation_level="READ COMMITTED").begin()'
        )


def in_autocommit(conn: Connection) -> bool:
    """Whether there is no transaction to be part of. SQLAlchemy's isolation level ends in this attribute with every
    driver, and so does a setting behind its back."""
    return bool(getattr(conn.connection.dbapi_connection, "autocommit", False))
