"""What is no handle is refused by a sentence that names the right form, and not by a driver's error."""

import asyncio
import re
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as make_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sqlane_sa import AutocommitError, HandleError, Queue
from tests.enqueue.business import NOTHING, Order, seen, sql_sent
from tests.support import with_driver


@pytest.fixture(autouse=True)
def name(queue: Queue) -> None:
    queue.define("n")


@pytest.fixture
def async_engine(database_url: str) -> AsyncEngine:
    return make_async_engine(with_driver(database_url, "asyncpg"), poolclass=sa.NullPool)


def test_an_async_handle_is_not_for_enqueue(queue: Queue, async_engine: AsyncEngine) -> None:
    session = AsyncSession(async_engine)
    for on in (session, async_engine.connect(), async_scoped_session(async_sessionmaker(async_engine), lambda: 1)):
        for enqueue, right in (
            (lambda on: queue.enqueue(on, "n"), "await queue.aenqueue("),
            (lambda on: queue.enqueue_many(on, [queue.new("n")]), "await queue.aenqueue_many("),
        ):
            with pytest.raises(HandleError, match=re.escape(right)) as caught:
                enqueue(on)
            assert isinstance(caught.value, TypeError)
            assert type(on).__name__ in str(caught.value)


def test_the_sync_session_of_an_async_one(queue: Queue, async_engine: AsyncEngine) -> None:
    """G81: neither MissingGreenlet nor a connection that is never given back."""
    with pytest.raises(HandleError, match=r"await async_session\.run_sync"):
        queue.enqueue(AsyncSession(async_engine).sync_session, "n")


def test_the_sync_connection_of_an_async_one(queue: Queue, async_engine: AsyncEngine) -> None:
    async def work() -> None:
        async with async_engine.connect() as conn:
            with pytest.raises(HandleError, match=r"await queue\.aenqueue\(async_session"):
                queue.enqueue(conn.sync_connection, "n")

    asyncio.run(work())


def test_a_sync_handle_is_not_for_aenqueue(queue: Queue, engine: sa.Engine) -> None:
    async def work() -> None:
        with Session(engine) as session, engine.connect() as conn:
            for on in (session, conn, engine, None):
                with pytest.raises(HandleError, match=r"queue\.enqueue\(\) without await") as caught:
                    await queue.aenqueue(on, "n")
                assert type(on).__name__ in str(caught.value)
                with pytest.raises(HandleError, match=r"queue\.enqueue_many\(\) without await"):
                    await queue.aenqueue_many(on, [])

    asyncio.run(work())


def test_an_async_engine_has_no_transaction(queue: Queue, async_engine: AsyncEngine) -> None:
    async def work() -> None:
        with pytest.raises(HandleError, match=r"AsyncSession or AsyncConnection.*AsyncEngine"):
            await queue.aenqueue(async_engine, "n")

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["engine", "sessionmaker", "Session", "url", "None", "cursor"])
def test_other_objects(queue: Queue, engine: sa.Engine, kind: str) -> None:
    objects: dict[str, Any] = {
        "engine": engine,
        "sessionmaker": sessionmaker(engine),
        "Session": Session,
        "url": "postgresql://",
        "None": None,
        "cursor": object(),
    }
    with pytest.raises(HandleError, match="a Session, scoped_session or Connection") as caught:
        queue.enqueue(objects[kind], "n")
    assert ("engine.begin()" in str(caught.value)) is (kind == "engine")
    assert ("open one: `with maker() as session, session.begin(): " in str(caught.value)) is (kind == "sessionmaker")


def test_what_makes_sessions_is_to_make_one(queue: Queue, engine: sa.Engine, async_engine: AsyncEngine) -> None:
    """In either door the code is that of the session which it makes."""
    sync_code = "; open one: `with maker() as session, session.begin(): queue.enqueue(session, ...)`"
    async_code = "; open one: `async with maker() as session, session.begin(): await queue.aenqueue(session, ...)`"
    for maker, code in ((sessionmaker(engine), sync_code), (async_sessionmaker(async_engine), async_code)):
        for call in (lambda on: queue.enqueue(on, "n"), lambda on: asyncio.run(queue.aenqueue(on, "n"))):
            with pytest.raises(HandleError) as caught:
                call(maker)
            assert str(caught.value).endswith(f", and got {type(maker).__name__}{code}")


def test_the_code_of_a_handles_message_can_be_pasted(
    queue: Queue, engine: sa.Engine, async_engine: AsyncEngine
) -> None:
    """With the name of the function, which is what the application has; of others nobody knows."""

    @queue.job("mail.welcome")
    def welcome(payload: Any) -> None: ...

    unnamed = queue.job("mail.bye")(lambda payload: None)
    for handle, name in ((welcome, "welcome"), (unnamed, "job"), (queue.define("mail.other"), "job")):
        for call, code in (
            (lambda on, handle=handle: handle.enqueue(on), f"; use `await {name}.aenqueue(...)` for"),
            (lambda on, handle=handle: handle.enqueue(on.sync_engine), f"as conn: {name}.enqueue(conn, ...)`"),
            (lambda on, handle=handle: asyncio.run(handle.aenqueue(engine)), f" call {name}.enqueue() without await"),
            (lambda on, handle=handle: handle.enqueue(sessionmaker()), f".begin(): {name}.enqueue(session, ...)`"),
        ):
            with pytest.raises(HandleError, match=rf"^<job '{re.escape(handle.name)}'>\.a?enqueue\(\)") as caught:
                call(async_engine)
            assert code in str(caught.value)


def test_a_session_without_an_engine_says_so_itself(queue: Queue) -> None:
    with pytest.raises(sa.exc.UnboundExecutionError), Session() as session:
        queue.enqueue(session, "n")


def test_another_database_is_refused(queue: Queue) -> None:
    """By its name, before anything is sent."""
    other = sa.create_engine("sqlite://")
    with Session(other) as session, other.connect() as conn, sql_sent(other) as sent:
        for on in (session, conn):
            for call in (queue.enqueue, queue.enqueue_many, queue.get, queue.stats):
                arguments = {queue.enqueue_many: [[queue.new("n")]], queue.stats: []}.get(call, ["n"])
                with pytest.raises(HandleError, match=rf"queue\.{call.__name__}\(\) needs PostgreSQL, .* of sqlite; "):
                    call(on, *arguments)
        assert sent == []
    other.dispose()


def test_a_session_chooses_among_its_engines(queue: Queue, engine: sa.Engine) -> None:
    """By the queue's tables, as it would for a mapped class."""
    other = sa.create_engine("sqlite://")
    with Session(binds={Order: other, queue.tables.jobs: engine}) as session:
        queue.enqueue(session, "n")
        session.commit()
    assert seen(engine) == (0, 1, 1, 0)
    other.dispose()


AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
@pytest.mark.parametrize("set_on", ["engine", "session", "driver"])
def test_autocommit_is_refused(database_url: str, engine: sa.Engine, queue: Queue, driver: str, set_on: str) -> None:
    """G80: a rollback could not take the job back."""
    own = sa.create_engine(with_driver(database_url, driver), **(AUTOCOMMIT if set_on == "engine" else {}))
    if set_on == "driver":
        sa.event.listen(own, "connect", lambda connection, record: setattr(connection, "autocommit", True))
    with Session(own) as session:
        conn = session.connection(execution_options=AUTOCOMMIT if set_on == "session" else None)
        with sql_sent(own) as sent:
            for on in (session, conn):
                with pytest.raises(AutocommitError, match=r"AUTOCOMMIT.*READ COMMITTED"):
                    queue.enqueue(on, "n")
                with pytest.raises(AutocommitError):
                    queue.enqueue_many(on, [queue.new("n")] * 2)
        assert sent == []
        session.rollback()
    own.dispose()
    assert seen(engine) == NOTHING


def test_autocommit_is_refused_on_asyncpg(async_engine: AsyncEngine, engine: sa.Engine, queue: Queue) -> None:
    async def work() -> None:
        async with AsyncSession(async_engine.execution_options(**AUTOCOMMIT)) as session:
            with pytest.raises(AutocommitError):
                await queue.aenqueue(session, "n")
        async with async_engine.connect() as conn:
            await conn.execution_options(**AUTOCOMMIT)
            with pytest.raises(AutocommitError):
                await queue.aenqueue_many(conn, [queue.new("n")])

    asyncio.run(work())
    assert seen(engine) == NOTHING


def test_the_connection_serves_again_in_another_level(engine: sa.Engine, queue: Queue) -> None:
    with engine.connect().execution_options(**AUTOCOMMIT) as conn:
        with pytest.raises(AutocommitError):
            queue.enqueue(conn, "n")
        conn.rollback()
        conn.execution_options(isolation_level="READ COMMITTED")
        queue.enqueue(conn, "n")
        conn.commit()
    assert seen(engine) == (0, 1, 1, 0)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_other_level_serves(engine: sa.Engine, queue: Queue, level: str) -> None:
    with engine.execution_options(isolation_level=level).begin() as conn:
        queue.enqueue(conn, "n")
        assert queue.enqueue(conn, "n", id="a").created
        assert not queue.enqueue(conn, "n", id="a").created
    assert seen(engine) == (0, 2, 2, 0)


def test_looking_takes_what_can_be_looked_on(engine: sa.Engine, queue: Queue) -> None:
    """A Connection or a Session, also in AUTOCOMMIT; for everything else the message names the form."""
    with Session(engine) as session, engine.connect() as conn:
        auto = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        for on in (session, conn, auto):
            assert queue.get(on, "none") is None
            assert queue.stats(on) == {}
        auto.close()
    for wrong in (engine, AsyncSession(), None, "n"):
        with pytest.raises(HandleError, match=r"queue\.get\(\) takes a Session.*run_sync.*engine\.connect"):
            queue.get(wrong, "none")
        with pytest.raises(HandleError, match=r"queue\.stats\(\) takes a Session"):
            queue.stats(wrong)


def test_a_forgotten_session_is_named_and_not_what_was_taken_for_it(queue: Queue) -> None:
    """The payload stands where the session should: what it then lacks is no news."""
    job = queue.job("keyed", mutex_keys=lambda payload: [payload["key"]])(lambda payload: None)
    plain = queue.define("plain")
    for payload in ({"key": "k"}, {}):
        for handle in (job, plain):
            said = f"<job {handle.name!r}>.enqueue() takes a Session, scoped_session or Connection first, and got dict"
            with pytest.raises(HandleError) as caught:
                handle.enqueue(payload)
            assert str(caught.value) == said
            with pytest.raises(
                HandleError, match=r"^<job '.*'>\.aenqueue\(\) takes an AsyncSession .* first, and got dict"
            ):
                asyncio.run(handle.aenqueue(payload))
        with pytest.raises(HandleError, match=r"^queue\.enqueue\(\) takes a Session, .* first, and got str"):
            queue.enqueue("keyed", payload)
        with pytest.raises(HandleError, match=r"^queue\.aenqueue\(\) takes an AsyncSession .* first, and got str"):
            asyncio.run(queue.aenqueue("keyed", payload))
