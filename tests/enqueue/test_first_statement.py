"""An enqueue that is the first statement of its transaction: psycopg sends it together with BEGIN."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa import Queue, migrations
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.store import together
from tests.performance.wire import Wire
from tests.support import wait_until

ON_PSYCOPG = "postgresql+psycopg"
Make = Callable[..., sa.Engine]


@pytest.fixture
def wire(database_url: str) -> Iterator[Wire]:
    with Wire(database_url) as wire:
        yield wire


@pytest.fixture
def application(database_url: str) -> Iterator[Make]:
    """Makes an engine of the application's, with one connection."""
    engines: list[sa.Engine] = []

    def make(url: str = database_url, **options: Any) -> sa.Engine:
        engines.append(sa.create_engine(url, **{"pool_size": 1, "max_overflow": 0, **options}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture(autouse=True)
def defined(queue: Queue) -> None:
    queue.define("n")


def round_trips(wire: Wire, on: sa.Engine, queue: Queue, **options: Any) -> int:
    """Of a transaction that enqueues."""
    before = wire.sent.round_trips
    with on.begin() as conn:
        queue.enqueue(conn, "n", **options)
    return wire.sent.round_trips - before


def payloads(on: sa.Engine) -> list[Any]:
    with on.connect() as conn:
        rows = conn.execute(sa.text("SELECT payload FROM sqlane_payloads ORDER BY id"))
        return [payload for (payload,) in rows]


def test_a_transaction_is_two_round_trips(queue: Queue, wire: Wire, application: Make) -> None:
    """The very first prepares the statement, on the way: no more than the handshake and what SQLAlchemy asks once."""
    on = application(wire.url)
    with on.begin() as conn:
        conn.execute(sa.text("SELECT 1"))
    assert [round_trips(wire, on, queue) for _ in range(8)] == [2] * 8
    assert [round_trips(wire, on, queue, delay=60) for _ in range(2)] == [2, 2]
    assert [round_trips(wire, on, queue, mutex_keys=["k"]) for _ in range(2)] == [2, 2]
    with on.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM sqlane_jobs")) == 12


def test_a_transaction_of_an_event_loop_is_two_round_trips(queue: Queue, wire: Wire) -> None:
    async def enqueue() -> list[int]:
        on = create_async_engine(sa.make_url(wire.url).set(drivername=ON_PSYCOPG), pool_size=1)
        async with on.begin() as conn:
            await conn.execute(sa.text("SELECT 1"))
        trips = []
        for n in range(4):
            before = wire.sent.round_trips
            async with on.begin() as conn:
                await queue.aenqueue(conn, "n", n)
            trips.append(wire.sent.round_trips - before)
        async with on.connect() as conn:
            assert await conn.scalar(sa.text("SELECT count(*) FROM sqlane_jobs")) == 4
        await on.dispose()
        return trips

    assert asyncio.run(enqueue()) == [2, 2, 2, 2]


@pytest.mark.parametrize("before", ["a statement", "a savepoint", "an enqueue"])
def test_what_came_before_is_in_the_transaction(queue: Queue, application: Make, before: str) -> None:
    on = application()
    with on.connect() as conn:
        if before == "a statement":
            conn.execute(sa.text("SELECT 1"))
        elif before == "a savepoint":
            conn.begin_nested()
        else:
            queue.enqueue(conn, "n", "first")
        queue.enqueue(conn, "n", "second")
        conn.rollback()
    assert payloads(on) == []


def test_the_first_statement_of_a_session(queue: Queue, application: Make) -> None:
    on = application()
    with Session(on) as session:
        queue.enqueue(session, "n", 1)
        session.rollback()
        queue.enqueue(session, "n", 2)
        session.execute(sa.text("SELECT 1"))
        session.commit()
    assert payloads(on) == [2]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["def", "async def"])
def test_the_level_of_the_connection(
    queue: Queue, database_url: str, application: Make, level: str, asynchronous: bool
) -> None:
    def seen(conn: sa.Connection) -> str:
        queue.enqueue(conn, "n")
        return str(conn.scalar(sa.text("SHOW transaction_isolation")))

    async def seen_in_a_loop() -> str:
        on = create_async_engine(sa.make_url(database_url).set(drivername=ON_PSYCOPG), isolation_level=level)
        async with on.begin() as conn:
            found = await conn.run_sync(seen)
        await on.dispose()
        return found

    if asynchronous:
        assert asyncio.run(seen_in_a_loop()) == level.lower()
    else:
        with application(isolation_level=level).begin() as conn:
            assert seen(conn) == level.lower()


@pytest.mark.parametrize("options", [{"postgresql_readonly": True}, {"postgresql_readonly": False}])
def test_a_read_only_connection_refuses_it(queue: Queue, application: Make, options: Any) -> None:
    on = application()
    with on.connect().execution_options(**options) as conn:
        if options["postgresql_readonly"]:
            with pytest.raises(DBAPIError, match="read-only"):
                queue.enqueue(conn, "n")
            conn.rollback()
        else:
            queue.enqueue(conn, "n", 1)
            conn.commit()
    assert payloads(on) == [1] * (not options["postgresql_readonly"])


def test_a_listener_that_makes_the_transaction_read_only(queue: Queue, application: Make) -> None:
    """On the driver's own connection, when SQLAlchemy begins: after all that an enqueue can ask before."""
    on = application()

    @sa.event.listens_for(on, "begin")
    def read_only(conn: sa.Connection) -> None:
        raw: Any = conn.connection.driver_connection
        raw.read_only = True

    with on.connect() as conn:
        with pytest.raises(DBAPIError, match="read-only"):
            queue.enqueue(conn, "n")
        conn.rollback()
    sa.event.remove(on, "begin", read_only)
    assert payloads(application()) == []


def test_listeners_and_echo_see_it(queue: Queue, application: Make, caplog: pytest.LogCaptureFixture) -> None:
    on = application()
    seen: list[tuple[str, str, int | None]] = []

    @sa.event.listens_for(on, "before_cursor_execute")
    def before(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(("before", statement, None))

    @sa.event.listens_for(on, "after_cursor_execute")
    def after(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(("after", statement, cursor.rowcount))

    with caplog.at_level(logging.INFO, "sqlalchemy.engine"), on.begin() as conn:
        queue.enqueue(conn, "n", "the payload")
    (_, sql, _), second = seen
    assert "INSERT INTO sqlane_jobs" in sql
    assert second == ("after", sql, 1)
    assert sql in caplog.text
    assert "the payload" in caplog.text
    assert payloads(on) == ["the payload"]


def test_a_statement_that_a_listener_has_changed(queue: Queue, wire: Wire, application: Make) -> None:
    """As those do that say where it comes from."""
    on = application(wire.url)

    @sa.event.listens_for(on, "before_cursor_execute", retval=True)
    def comment(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> Any:
        return statement + " /* from the shop */", parameters

    sent: list[str] = []
    note = wire._count
    wire._count = lambda message: (sent.append(message.statement or ""), note(message))[1]  # type: ignore[method-assign]
    for n in range(2):
        with on.begin() as conn:
            queue.enqueue(conn, "n", n)
    assert sum("INSERT INTO sqlane_jobs" in sql and sql.endswith("/* from the shop */") for sql in sent) >= 1
    assert payloads(on) == [0, 1]


def test_a_listener_that_uses_the_transaction_first(queue: Queue, application: Make) -> None:
    """As for row level security: what it sets is there."""
    on = application()
    busy: list[int] = []

    @sa.event.listens_for(on, "before_cursor_execute")
    def set_tenant(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if not busy:
            busy.append(1)
            conn.exec_driver_sql("SET LOCAL app.tenant = '7'")
            busy.clear()

    with on.begin() as conn:
        queue.enqueue(conn, "n", 1)
        assert conn.scalar(sa.text("SELECT current_setting('app.tenant')")) == "7"
    assert payloads(on) == [1]


@pytest.mark.parametrize("prepared", [False, True], ids=["the first", "a later one"])
def test_what_the_database_refuses(queue: Queue, application: Make, prepared: bool) -> None:
    """The error of the driver with the statement, a transaction to be rolled back, and a session that goes on."""
    on = application()
    with on.begin() as conn:
        conn.execute(sa.text("ALTER TABLE sqlane_jobs ADD CHECK (priority < 100)"))
        if prepared:
            queue.enqueue(conn, "n", "good")
    with on.connect() as conn:
        if prepared:
            queue.enqueue(conn, "n", "good")
            conn.commit()
        with pytest.raises(IntegrityError) as caught:
            queue.enqueue(conn, "n", priority=100)
        assert isinstance(caught.value.orig, psycopg.errors.CheckViolation)
        assert "INSERT INTO sqlane_jobs" in (caught.value.statement or "")
        with pytest.raises(DBAPIError, match="aborted"):
            conn.execute(sa.text("SELECT 1"))
        conn.rollback()
        pid = conn.scalar(sa.text("SELECT pg_backend_pid()"))
        conn.rollback()
        for n in range(2):
            queue.enqueue(conn, "n", n)
            conn.commit()
        assert conn.scalar(sa.text("SELECT pg_backend_pid()")) == pid
    assert payloads(on) == ["good"] * (2 * prepared) + [0, 1]


@pytest.mark.parametrize("code", ["26000", "42P05"])
def test_a_trigger_with_the_error_of_a_lost_statement(queue: Queue, application: Make, code: str) -> None:
    """It is tried again, and is the trigger's still: so is what it says."""
    on = application()
    with on.begin() as conn:
        queue.enqueue(conn, "n", "good")
    with on.begin() as conn:
        conn.exec_driver_sql(
            f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = '{code}'; END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON sqlane_payloads FOR EACH ROW EXECUTE FUNCTION refuse()"""
        )
    for _ in range(2):
        with on.connect() as conn, pytest.raises(DBAPIError, match="not today") as caught:
            queue.enqueue(conn, "n", "bad")
        assert sqlstate(caught.value) == code
    with on.begin() as conn:
        conn.exec_driver_sql("DROP TRIGGER refuse ON sqlane_payloads")
        assert conn.scalar(sa.text("SELECT count(*) FROM sqlane_jobs")) == 1


def test_a_listener_that_uses_the_cursor_itself(queue: Queue, application: Make) -> None:
    """Its count of rows is that of the last statement, and of none that failed."""
    on = application()
    counts: list[int] = []

    @sa.event.listens_for(on, "do_execute")
    def twice(cursor: Any, statement: str, parameters: Any, context: Any) -> bool | None:
        if "INSERT INTO sqlane_jobs" not in statement:
            return None
        try:
            cursor.execute(statement, parameters)
            counts.append(cursor.rowcount)
            cursor.execute("SELECT 1 UNION SELECT 2")
        finally:
            counts.append(cursor.rowcount)
        return True

    with on.begin() as conn:
        queue.enqueue(conn, "n")
    with on.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE sqlane_jobs ADD CHECK (priority < 100)")
    with on.connect() as conn, pytest.raises(IntegrityError):
        queue.enqueue(conn, "n", priority=100)
    assert counts == [1, 2, -1]


@pytest.mark.parametrize("what", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_session_that_has_lost_the_statement(queue: Queue, application: Make, what: str) -> None:
    on = application()
    for n in range(3):
        with on.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql(what)
        with on.begin() as conn:
            queue.enqueue(conn, "n", n)
    assert payloads(on) == [0, 1, 2]


def test_a_session_that_has_the_statement_already(queue: Queue, application: Make) -> None:
    """Behind a pooler it is another client's; or an error came after it was prepared."""
    on = application()
    for n in range(3):
        with on.begin() as conn:
            queue.enqueue(conn, "n", n)
            conn.connection.info.clear()
    assert payloads(on) == [0, 1, 2]


def test_rollbacks_of_psycopg_that_deallocate(queue: Queue, application: Make) -> None:
    on = application(connect_args={"prepare_threshold": 0})
    for n in range(4):
        with on.connect() as conn:
            queue.enqueue(conn, "n", n)
            conn.execute(sa.text("SELECT 1"))
            conn.rollback() if n % 2 else conn.commit()
    assert payloads(on) == [0, 2]


def test_where_nothing_may_be_prepared(queue: Queue, wire: Wire, application: Make) -> None:
    on = application(wire.url, connect_args={"prepare_threshold": None})
    with on.connect() as conn:
        conn.execute(sa.text("SELECT 1"))
    assert [round_trips(wire, on, queue) for _ in range(8)] == [3] * 8
    with on.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM pg_prepared_statements")) == 0


class Noting(psycopg.Cursor[Any]):
    said: list[str] = []  # noqa: RUF012

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        self.said.append(str(query))
        return super().execute(query, *arguments, **options)


def test_a_cursor_of_the_applications(queue: Queue, application: Make) -> None:
    """As those have that trace what is sent."""
    on = application(connect_args={"cursor_factory": Noting})
    with on.begin() as conn:
        queue.enqueue(conn, "n", 1)
    assert any("INSERT INTO sqlane_jobs" in sql for sql in Noting.said)
    assert payloads(on) == [1]


def test_psycopgs_own_pipeline_and_transaction(queue: Queue, application: Make) -> None:
    on = application()
    with on.begin() as conn:
        raw: Any = conn.connection.driver_connection
        with raw.pipeline():
            queue.enqueue(conn, "n", 1)
    with on.begin() as conn:
        raw = conn.connection.driver_connection
        with pytest.raises(ZeroDivisionError), raw.transaction():
            queue.enqueue(conn, "n", 2)
            raise ZeroDivisionError
    assert payloads(on) == [1]


def test_two_queues_on_one_connection(queue: Queue, application: Make) -> None:
    other = Queue(prefix="%s %%_")
    other.define("n")
    on = application()
    migrations.apply(on, other)
    for each in (queue, other, queue, other):
        with on.begin() as conn:
            each.enqueue(conn, "n")
    with on.connect() as conn:
        for each in (queue, other):
            assert conn.scalar(sa.select(sa.func.count()).select_from(each.tables.jobs)) == 2


def test_as_many_queues_as_tenants(queue: Queue, application: Make) -> None:
    """A session keeps no more statements than psycopg is to prepare, however many queues use it."""
    queues = [queue, *(Queue(prefix=f"tenant{n}_") for n in range(3))]
    on = application()

    @sa.event.listens_for(on, "connect")
    def limit(connection: Any, record: Any) -> None:
        connection.prepared_max = 2

    for each in queues[1:]:
        each.define("n")
        migrations.apply(on, each)
    for each in queues + queues:
        with on.begin() as conn:
            each.enqueue(conn, "n")
    with on.connect() as conn:
        ours = sa.text("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'sqlane%'")
        assert conn.scalar(ours) == 2
        for each in queues:
            assert conn.scalar(sa.select(sa.func.count()).select_from(each.tables.jobs)) == 2


def waits(rival: sa.Connection) -> bool:
    return bool(rival.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")))


@pytest.mark.parametrize("end", ["cancel", "terminate"])
def test_a_statement_that_is_ended_by_hand(queue: Queue, engine: sa.Engine, application: Make, end: str) -> None:
    on = application()
    errors: list[DBAPIError] = []

    def enqueue() -> None:
        with on.connect() as conn:
            try:
                queue.enqueue(conn, "n", "lost")
            except DBAPIError as error:
                errors.append(error)

    with engine.begin() as rival:
        rival.execute(sa.text("LOCK TABLE sqlane_payloads"))
        thread = threading.Thread(target=enqueue)
        thread.start()
        wait_until(lambda: waits(rival))
        rival.execute(sa.text(f"SELECT pg_{end}_backend(pid) FROM pg_locks WHERE NOT granted"))
        thread.join(60)
    (error,) = errors
    assert error.connection_invalidated == (end == "terminate")
    assert isinstance(error, OperationalError)
    assert sqlstate(error) == {"cancel": "57014", "terminate": "57P01"}[end]  # as the driver says it
    with on.begin() as conn:
        queue.enqueue(conn, "n", "kept")
    assert payloads(on) == ["kept"]


def test_a_task_that_is_cancelled_meanwhile(queue: Queue, engine: sa.Engine, database_url: str) -> None:
    async def enqueue() -> None:
        on = create_async_engine(sa.make_url(database_url).set(drivername=ON_PSYCOPG), pool_size=1, max_overflow=0)

        async def lost() -> None:
            async with on.begin() as conn:
                await queue.aenqueue(conn, "n", "lost")

        with engine.begin() as rival:
            rival.execute(sa.text("LOCK TABLE sqlane_payloads"))
            task = asyncio.create_task(lost())
            while not waits(rival):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        conn: AsyncConnection
        async with on.begin() as conn:
            await queue.aenqueue(conn, "n", "kept")
        await on.dispose()

    asyncio.run(enqueue())
    assert payloads(engine) == ["kept"]


def test_an_interrupt_meanwhile(queue: Queue, engine: sa.Engine, application: Make, monkeypatch: Any) -> None:
    """Ctrl-C between two answers: nobody knows what of them was read, and the connection is given up."""
    on = application()
    exchanged = together._exchanged

    def interrupted(*arguments: Any) -> Any:
        yield next(exchanged(*arguments))
        raise KeyboardInterrupt

    with on.connect() as conn:
        monkeypatch.setattr(together, "_exchanged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.enqueue(conn, "n", "lost")
    monkeypatch.undo()
    with on.begin() as conn:
        queue.enqueue(conn, "n", "kept")
    assert payloads(on) == ["kept"]


def test_a_name_that_the_client_encoding_lacks(queue: Queue, application: Make) -> None:
    """Refused before anything is sent, as the driver does, and the session goes on."""
    queue.define("日本")
    on = application(connect_args={"client_encoding": "latin1"})
    with on.connect() as conn:
        with pytest.raises(UnicodeEncodeError):
            queue.enqueue(conn, "日本")
        conn.rollback()
        queue.enqueue(conn, "n", "kept")
        conn.commit()
    assert payloads(on) == ["kept"]
