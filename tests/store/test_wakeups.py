"""Wake-ups: a NOTIFY in the transaction that makes work, and only while a worker says that it waits."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.steps import add, add_many, claim, rows, run, running
from tests.wakeups import Heard


@pytest.mark.usefixtures("asleep")
def test_a_committed_enqueue_wakes_once(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.begin() as conn:
        add(conn, queue)
        add(conn, queue, id="known")
        add_many(conn, queue, 5)
    assert heard() == 1
    assert heard() == 0


@pytest.mark.usefixtures("asleep")
def test_nothing_is_heard_before_the_commit(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.begin() as conn:
        add(conn, queue)
        assert heard() == 0
    assert heard() == 1


COUNTS = """SELECT (SELECT count(*) FROM sqlane_jobs), (SELECT count(*) FROM sqlane_payloads),
    (SELECT count(*) FROM sqlane_waits)"""


@pytest.mark.usefixtures("asleep")
def test_a_rollback_takes_everything_back(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.connect() as conn:
        add(conn, queue, mutex_keys=["k"])
        assert rows(conn, COUNTS) == [(1, 1, 1)]
        conn.rollback()
        assert rows(conn, COUNTS) == [(0, 0, 0)]
    assert heard() == 0


@pytest.mark.usefixtures("asleep")
def test_so_does_the_rollback_of_a_savepoint(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.begin() as conn:
        savepoint = conn.begin_nested()
        add(conn, queue, mutex_keys=["k"])
        savepoint.rollback()
        assert rows(conn, COUNTS) == [(0, 0, 0)]
    assert heard() == 0


@pytest.mark.usefixtures("asleep")
def test_an_enqueue_that_creates_nothing_is_heard_at_most_as_a_hint(
    engine: sa.Engine, queue: Queue, heard: Heard
) -> None:
    for _ in range(2):
        with engine.begin() as conn:
            add(conn, queue, id="same")
    assert heard() in (1, 2)


def test_with_nobody_asleep_nobody_is_notified(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.begin() as conn:
        add(conn, queue)
        store.wake(conn, queue.tables)
    assert heard() == 0


def test_a_worker_is_asleep_until_it_says_otherwise(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    def wakes() -> bool:
        with engine.begin() as conn:
            store.wake(conn, queue.tables)
        return heard() == 1

    def sleep(worker: str, seconds: float) -> None:
        with engine.begin() as conn:
            store.fall_asleep(conn, queue.tables, worker_id=worker, duration=seconds)

    assert not wakes()
    sleep("a", 60)
    assert wakes()
    sleep("a", 0)
    assert not wakes(), "its time is over"
    sleep("a", 60)
    sleep("b", 60)
    for worker, others in (("a", True), ("b", False), ("unknown", False)):
        with engine.begin() as conn:
            store.awake(conn, queue.tables, worker_id=worker)
        assert wakes() is others


@pytest.mark.usefixtures("asleep")
@pytest.mark.parametrize("waiting", [True, False])
def test_a_freed_key_wakes_only_if_somebody_waits_for_it(
    engine: sa.Engine, queue: Queue, heard: Heard, waiting: bool
) -> None:
    with engine.begin() as conn:
        job = running(conn, queue, mutex_keys=["k"])
        add(conn, queue, mutex_keys=["k" if waiting else "other"])
    heard()
    with engine.begin() as conn:
        store.complete(conn, queue.tables, jobs=[job])
    assert heard() == int(waiting)


@pytest.mark.usefixtures("asleep")
def test_work_that_ends_without_anybody_waiting_wakes_nobody(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.begin() as conn:
        jobs = claim(conn, queue, *add_many(conn, queue, 3))
    heard()
    with engine.begin() as conn:
        store.complete(conn, queue.tables, jobs=jobs)
    assert heard() == 0


@pytest.mark.usefixtures("asleep")
def test_making_due_wakes(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.begin() as conn:
        add(conn, queue, delay=60)
    heard()
    with engine.begin() as conn:
        store.make_due(conn, queue.tables, names=["n"])
    assert heard() == 1


@pytest.mark.usefixtures("asleep")
def test_a_failure_job_wakes(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    queue.define("n", failure_job="sorry")
    with engine.begin() as conn:
        job = running(conn, queue)
    heard()
    with engine.begin() as conn:
        store.fail(conn, queue.tables, job=job, error={}, build_failure_job=queue.build_failure_job)
    assert heard() == 1


@pytest.mark.usefixtures("asleep")
def test_another_queue_has_a_channel_of_its_own(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    others = [
        Queue("a_"),
        Queue(schema="a"),
        Queue("a", "b"),
        Queue("b", "a"),
        Queue("", "ab"),
        Queue("x" * 40, "y" * 63),
    ]
    channels = {one.tables.channel for one in [queue, *others]}
    assert len(channels) == len(others) + 1
    assert all(len(channel.encode()) < 64 for channel in channels)
    with engine.begin() as conn:
        run(conn, "SELECT pg_notify(:channel, '')", channel=others[0].tables.channel)
    assert heard() == 0
