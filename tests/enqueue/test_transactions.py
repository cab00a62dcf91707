"""What enqueue does with a transaction in an odd state, and what it leaves alone in a good one."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sqlane_sa import Queue
from tests.enqueue.business import NOTHING, Order, seen, sql_sent


@pytest.fixture(autouse=True)
def name(queue: Queue) -> None:
    queue.define("n")


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def enqueues(queue: Queue) -> list[Any]:
    """Every way that writes."""
    return [
        lambda on: queue.enqueue(on, "n"),
        lambda on: queue.enqueue(on, "n", id="known"),
        lambda on: queue.enqueue_many(on, [queue.new("n")] * 3),
    ]


def test_nothing_of_the_callers_is_flushed(engine: sa.Engine, queue: Queue, session: Session) -> None:
    """G78: the caller meets the error of a row of its own at its own flush."""
    session.add(Order(number=1))
    session.commit()
    duplicate = Order(number=1)
    session.add(duplicate)
    for enqueue in enqueues(queue):
        enqueue(session)
        assert list(session.new) == [duplicate]
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    session.rollback()
    assert seen(engine) == (1, 0, 0, 0)


def test_pending_changes_and_deletes_stay_pending(queue: Queue, session: Session) -> None:
    session.add_all([Order(number=1), Order(number=2)])
    session.commit()
    changed, deleted = session.get_one(Order, 1), session.get_one(Order, 2)
    changed.number = 3
    session.delete(deleted)
    for enqueue in enqueues(queue):
        enqueue(session)
    assert (list(session.dirty), list(session.deleted)) == ([changed], [deleted])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_statement_and_no_savepoint(engine: sa.Engine, queue: Queue, session: Session, which: int) -> None:
    session.add(Order(number=1))
    session.connection()
    with sql_sent(engine) as sent:
        enqueues(queue)[which](session)
    assert [sql.split("(")[0].strip() for sql in sent] == [
        ["WITH new_job AS", "WITH input AS MATERIALIZED", "WITH new_jobs AS"][which]
    ]


def test_a_session_whose_flush_failed(engine: sa.Engine, queue: Queue, session: Session) -> None:
    """G79: its own error, and after the rollback that it asks for, enqueue works."""
    session.add(Order(number=1))
    session.commit()
    session.add(Order(number=1))
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    for enqueue in enqueues(queue):
        with pytest.raises(sa.exc.PendingRollbackError, match=r"issue Session\.rollback\(\)"):
            enqueue(session)
    session.rollback()
    queue.enqueue(session, "n")
    session.commit()
    assert seen(engine) == (1, 1, 1, 0)


def test_a_transaction_that_the_server_aborted(any_conn: sa.Connection, queue: Queue) -> None:
    with pytest.raises(sa.exc.DBAPIError):
        any_conn.execute(sa.text("SELECT 1 / CAST(:zero AS integer)"), {"zero": 0})
    with pytest.raises(sa.exc.DBAPIError, match="transaction is aborted"):
        queue.enqueue(any_conn, "n")
    any_conn.rollback()
    assert queue.enqueue(any_conn, "n").created


def test_a_savepoint_brings_an_aborted_transaction_back(any_conn: sa.Connection, queue: Queue) -> None:
    before = queue.enqueue(any_conn, "n")
    savepoint = any_conn.begin_nested()
    with pytest.raises(sa.exc.DBAPIError):
        any_conn.execute(sa.text("SELECT 1 / CAST(:zero AS integer)"), {"zero": 0})
    savepoint.rollback()
    after = queue.enqueue(any_conn, "n")
    assert None not in [queue.get(any_conn, one.id) for one in (before, after)]


def test_a_read_only_transaction(any_conn: sa.Connection, queue: Queue) -> None:
    """G79: the server's own words, and nothing is left."""
    any_conn.exec_driver_sql("SET TRANSACTION READ ONLY")
    with pytest.raises(sa.exc.DBAPIError, match="in a read-only transaction"):
        queue.enqueue(any_conn, "n")
    any_conn.rollback()
    assert queue.stats(any_conn) == {}


def test_a_session_of_read_only_transactions(engine: sa.Engine, queue: Queue) -> None:
    with Session(engine.execution_options(postgresql_readonly=True)) as session:
        with pytest.raises(sa.exc.DBAPIError, match="read-only transaction"):
            queue.enqueue(session, "n")
    assert seen(engine) == NOTHING


def test_a_savepoint_of_the_sessions_in_a_context(engine: sa.Engine, queue: Queue, session: Session) -> None:
    """G79: the usual form; the error goes on to the caller, who commits the rest."""
    with session.begin():
        kept = queue.enqueue(session, "n", "kept")
        with pytest.raises(ZeroDivisionError):
            with session.begin_nested():
                lost = queue.enqueue(session, "n", "lost")
                raise ZeroDivisionError
    with engine.connect() as conn:
        assert queue.get(conn, lost.id) is None
        assert queue.get(conn, kept.id) is not None


def test_a_session_joined_to_an_outer_transaction(engine: sa.Engine, queue: Queue) -> None:
    """As test suites do it: the session commits, the connection rolls back."""
    with engine.connect() as conn:
        with conn.begin() as outer:
            with Session(conn, join_transaction_mode="create_savepoint") as session:
                queue.enqueue(session, "n")
                session.commit()
            assert queue.stats(conn)["n"].pending == 1
            outer.rollback()
    assert seen(engine) == NOTHING
