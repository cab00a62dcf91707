"""When a job is due: from the moment of the call, or at the instant given."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sqlane_sa import InvalidJobError, Job, Queue, store

MS = timedelta(milliseconds=1)
"""One column is cut to it, the other rounded."""


@pytest.fixture(autouse=True)
def name(queue: Queue) -> None:
    queue.define("n")


def enqueued(conn: sa.Connection, queue: Queue, **options: Any) -> Job:
    found = queue.get(conn, queue.enqueue(conn, "n", **options).id)
    assert found is not None
    return found


def due(conn: sa.Connection, queue: Queue) -> list[str]:
    return store.find_candidates(conn, queue.tables, limits_by_name={"n": 100})


def begun_long_ago(conn: sa.Connection) -> datetime:
    """When its transaction began, at least 50 ms before the next statement."""
    conn.execute(sa.text("SELECT pg_sleep(0.05)"))
    return conn.execute(sa.text("SELECT now() + interval '50 ms'")).scalar_one()


def test_an_old_transaction_has_no_old_jobs(any_conn: sa.Connection, queue: Queue) -> None:
    """H82: the time of the call, and not of BEGIN."""
    earliest = begun_long_ago(any_conn) - MS
    job = enqueued(any_conn, queue)
    assert job.run_at > earliest
    assert job.created_at > earliest
    delayed = enqueued(any_conn, queue, delay=3)
    assert delayed.run_at > earliest + timedelta(seconds=3)
    assert abs(delayed.run_at - delayed.created_at - timedelta(seconds=3)) <= MS


def test_the_jobs_of_one_transaction_run_in_the_order_of_the_calls(conn: sa.Connection, queue: Queue) -> None:
    ids = [queue.enqueue(conn, "n").id for _ in range(50)]
    assert due(conn, queue) == ids


def test_two_overlapping_transactions(engine: sa.Engine, queue: Queue) -> None:
    """Order is by the call among what is committed: the late commit brings the early job."""
    with engine.connect() as late, engine.connect() as quick:
        first = queue.enqueue(late, "n")
        begun_long_ago(quick)
        second = queue.enqueue(quick, "n")
        quick.commit()
        assert due(quick, queue) == [second.id]
        late.commit()
        assert due(quick, queue) == [first.id, second.id]


ZONES = ["UTC", "America/New_York", "Asia/Kathmandu"]
INSTANTS = [
    datetime(2030, 7, 1, 12, 30, 15, 250_000, tzinfo=UTC),
    datetime(2030, 7, 1, 12, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    datetime(2030, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York")),
    datetime(2030, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=1),
    datetime(1970, 1, 1, tzinfo=UTC),
]


@pytest.mark.parametrize("zone", ZONES)
def test_an_aware_time_is_that_instant_in_any_zone(any_conn: sa.Connection, queue: Queue, zone: str) -> None:
    """H87: also in the hour that comes twice."""
    any_conn.execute(sa.text("SELECT set_config('TimeZone', :zone, true)"), {"zone": zone})
    for instant in INSTANTS:
        assert enqueued(any_conn, queue, run_at=instant).run_at.astimezone(UTC) == instant.astimezone(UTC)


EDGES = [
    datetime.min.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
]


@pytest.mark.parametrize("instant", EDGES)
def test_an_instant_that_some_zone_cannot_show_is_refused(engine: sa.Engine, queue: Queue, instant: datetime) -> None:
    """A worker in such a zone could not read the job."""
    with Session(engine) as session, pytest.raises(InvalidJobError, match=r"^run_at: .* years 1970 to 9998"):
        queue.enqueue(session, "n", run_at=instant)


@pytest.mark.parametrize("zone", ZONES)
def test_the_first_and_the_last_instant(any_conn: sa.Connection, queue: Queue, zone: str) -> None:
    any_conn.execute(sa.text("SELECT set_config('TimeZone', :zone, true)"), {"zone": zone})
    edges = [datetime(1970, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)]
    jobs = [enqueued(any_conn, queue, run_at=edge) for edge in edges]
    assert [job.run_at.astimezone(UTC) for job in jobs] == edges
    assert due(any_conn, queue) == [jobs[0].id]


@pytest.mark.parametrize("delay", [0, 0.0, timedelta(0), None])
def test_no_delay(any_conn: sa.Connection, queue: Queue, delay: Any) -> None:
    job = enqueued(any_conn, queue, delay=delay)
    assert abs(job.run_at - job.created_at) <= MS
    assert due(any_conn, queue) == [job.id]
