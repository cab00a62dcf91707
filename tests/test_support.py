import threading

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.support import blocked_pids, wait_for_lock_wait, wait_until, with_driver

COUNT = sa.text("SELECT count(*) FROM sqlane_jobs")


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_migrated_database_of_its_own(engine: sa.Engine, queue: Queue, turn: int) -> None:
    queue.define("n")
    with engine.begin() as conn:
        assert conn.scalar(COUNT) == 0
        queue.enqueue(conn, "n")


def test_conn_is_in_a_transaction_of_its_own(conn: sa.Connection, engine: sa.Engine, queue: Queue) -> None:
    assert conn.in_transaction()
    queue.define("n")
    queue.enqueue(conn, "n")
    with engine.connect() as other:
        assert other.scalar(COUNT) == 0


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_every_driver_reaches_it(database_url: str, driver: str) -> None:
    engine = sa.create_engine(with_driver(database_url, driver), poolclass=sa.NullPool)
    with engine.connect() as conn:
        assert conn.scalar(COUNT) == 0


def test_waiting_for_a_lock_wait(engine: sa.Engine) -> None:
    def lock() -> None:
        with engine.begin() as conn:
            conn.exec_driver_sql("LOCK TABLE sqlane_jobs")

    waiting = [threading.Thread(target=lock) for _ in range(2)]
    with engine.begin() as conn:
        conn.exec_driver_sql("LOCK TABLE sqlane_jobs")
        assert blocked_pids(conn) == []
        for thread in waiting:
            thread.start()
        assert len(wait_for_lock_wait(engine, 2)) == 2
    for thread in waiting:
        thread.join()


def test_a_state_that_never_comes() -> None:
    with pytest.raises(AssertionError, match=r"the moon did not come within 0\.02 s"):
        wait_until(lambda: False, timeout=0.02, message="the moon")
