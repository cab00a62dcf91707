"""In which order jobs run when ids and clocks are all that tells them apart."""

import multiprocessing
import time
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.testing import drain

LINE = """SELECT CAST(CAST(p.payload AS text) AS integer) FROM sqlane_waits AS w
    JOIN sqlane_payloads AS p ON p.id = w.job_id WHERE w.mutex_key = 'k' ORDER BY w.run_at, w.job_id"""


def line(conn: sa.Connection) -> list[int]:
    """The payloads of the jobs that wait for the key, the next one first."""
    return list(conn.scalars(sa.text(LINE)))


def test_one_key_in_one_transaction(conn: sa.Connection, queue: Queue) -> None:
    """E60: a thousand jobs of few milliseconds run in the order of the calls."""
    got: list[int] = []
    handle = queue.job("n", mutex_keys=["k"])(got.append)
    for number in range(400):
        handle.enqueue(conn, number)
    queue.enqueue_many(conn, (handle.new(number) for number in range(400, 1000)))
    assert line(conn) == list(range(1000))
    drain(conn, queue, limit=20)
    assert got == list(range(20))


def test_a_batch_with_ids_of_ones_own_is_in_their_order(conn: sa.Connection, queue: Queue) -> None:
    """All of it is due at the same time, and nothing but the ids tells the order."""
    handle = queue.job("n", mutex_keys=["k"])(print)
    queue.enqueue_many(conn, [handle.new(number, id=f"step-{number}") for number in (8, 9, 10)])
    queue.enqueue_many(conn, [handle.new(number, id=f"stop-{number:03}") for number in (98, 99, 100)])
    assert line(conn) == [10, 8, 9, 98, 99, 100]


def test_priorities_do_not_change_the_order_of_a_key(conn: sa.Connection, queue: Queue) -> None:
    """E58: only which key comes first."""
    got: list[Any] = []
    queue.job("n", mutex_keys=lambda payload: [payload[0]])(got.append)
    for number in range(10):
        queue.enqueue(conn, "n", ["a", number], priority=-number)
    queue.enqueue(conn, "n", ["b", 0], priority=-1)
    drain(conn, queue)
    assert [payload for payload in got if payload[0] == "a"] == [["a", number] for number in range(10)]
    assert got[0] == ["b", 0]


def test_a_job_for_later_does_not_block_its_key(conn: sa.Connection, queue: Queue) -> None:
    """E57."""
    got: list[str] = []
    handle = queue.job("n", mutex_keys=["k"])(got.append)
    handle.enqueue(conn, "later", delay=3600)
    handle.enqueue(conn, "now")
    drain(conn, queue)
    assert got == ["now"]
    drain(conn, queue, include_delayed=True)
    assert got == ["now", "later"]


BATCH, TURNS = 20, 25


def behind(url: str, seconds: int, first: int, turn: Any, done: Any) -> None:
    """A process whose clock is `seconds` behind, and which enqueues when it is its turn."""
    real = time.time_ns
    time.time_ns = lambda: real() - seconds * 1_000_000_000
    engine = sa.create_engine(url)
    queue = Queue()
    queue.define("n", mutex_keys=["k"])
    for start in range(first, first + BATCH * TURNS, BATCH):
        turn.acquire()
        with engine.begin() as conn:
            queue.enqueue_many(conn, [queue.new("n", number) for number in range(start, start + BATCH)])
            conn.exec_driver_sql("SELECT pg_sleep(0.002)")
        done.release()
    engine.dispose()


def test_two_processes_with_different_clocks(database_url: str, conn: sa.Connection, queue: Queue) -> None:
    """E60: the order is the database's and not that of the ids, which a clock behind makes smaller."""
    spawn = multiprocessing.get_context("spawn")
    turns = [spawn.Semaphore(1), spawn.Semaphore(0)]
    processes = [
        spawn.Process(target=behind, args=(database_url, 5 * i, 1000 * i, turns[i], turns[1 - i])) for i in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    expected = [1000 * p + BATCH * turn + i for turn in range(TURNS) for p in range(2) for i in range(BATCH)]
    assert line(conn) == expected
    ids = list(conn.scalars(sa.text("SELECT job_id FROM sqlane_waits ORDER BY run_at, job_id")))
    assert ids != sorted(ids), "the clocks do differ"
