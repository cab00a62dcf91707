"""Results that are written apart: what becomes of them depends on whether the database or their rows refused them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from sqlane_sa import Job, Queue, store
from sqlane_sa.values.outcome import Completed, Outcome
from sqlane_sa.worker.outcomes import Result, write_apart
from sqlane_sa.worker.running import RunningJob

Read = Callable[[str], Job]
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.status = 'completed' THEN RAISE 'refused by the trigger'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"""


class LostConnection(Exception):
    """No code: the server has sent nothing."""


class Faulty:
    """Transactions of an engine, of which some lose their connection before they have done anything; `sent` tells the
    time limit for locks that each has set."""

    def __init__(self, engine: sa.Engine, *lost: int) -> None:
        self._engine = engine
        self._lost = lost
        self.began = 0
        self.lock_timeouts: list[str] = []
        self.before: dict[int, Callable[[], None]] = {}

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        number, self.began = self.began, self.began + 1
        if number in self._lost:
            raise OperationalError("", {}, LostConnection("gone"), connection_invalidated=True)
        self.before.get(number, lambda: None)()
        with self._engine.begin() as conn:
            yield conn
            self.lock_timeouts.append(conn.exec_driver_sql("SHOW lock_timeout").scalar_one())


@pytest.fixture
def results(engine: sa.Engine, queue: Queue) -> list[Result]:
    """Three jobs that run, and have completed."""
    definition = queue.define("n")
    with engine.begin() as conn:
        ids = [one.id for one in queue.enqueue_many(conn, (queue.new("n") for _ in range(3)))]
        claimed = store.claim(conn, queue.tables, candidate_ids=ids, lock_token="t", locked_by="w", lease=60)
    outcome: Outcome = Completed()
    return [(RunningJob(job, definition, 0.0, 60.0), outcome) for job in claimed]


def statuses(results: list[Result], job: Read) -> list[tuple[str, int]]:
    return [(job(one.id).status, job(one.id).attempts) for one, _ in results]


@pytest.mark.parametrize("lost", range(3))
def test_a_lost_connection_leaves_results_as_they_are(
    engine: sa.Engine, queue: Queue, results: list[Result], job: Read, sql: Any, lost: int
) -> None:
    """At the whole batch, at a half, at a single one: they are no failures, and are written when it is over."""
    sql(REFUSE)
    with pytest.raises(OperationalError):
        write_apart(Faulty(engine, lost), queue, results[: 3 if lost else 1])  # type: ignore[arg-type]
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    before = statuses(results, job)
    assert all(status in ("running", "pending") for status, _ in before)
    assert write_apart(Faulty(engine), queue, results) == []  # type: ignore[arg-type]
    after = statuses(results, job)
    assert after == [("completed", 1) if status == "running" else (status, n) for status, n in before]
    assert ("completed", 1) in after


def test_a_connection_lost_at_a_fallback_leaves_the_result_as_it_is(
    engine: sa.Engine, queue: Queue, results: list[Result], job: Read, sql: Any
) -> None:
    """Refused once, then an outage: not a result that can never be stored."""
    sql(REFUSE)
    with pytest.raises(OperationalError):
        write_apart(Faulty(engine, 1), queue, results[:1])  # type: ignore[arg-type]
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    assert write_apart(Faulty(engine), queue, results[:1]) == []  # type: ignore[arg-type]
    assert statuses(results[:1], job) == [("completed", 1)]


def test_a_lock_found_before_a_fallback_leaves_the_result_as_it_is(
    engine: sa.Engine, queue: Queue, results: list[Result], job: Read, sql: Any
) -> None:
    sql(REFUSE)
    with engine.connect() as rival:
        faulty = Faulty(engine)
        faulty.before[1] = lambda: rival.execute(sa.text("SELECT FROM sqlane_jobs FOR UPDATE")) and None
        assert write_apart(faulty, queue, results[:1]) == results[:1]  # type: ignore[arg-type]
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    assert write_apart(Faulty(engine), queue, results[:1]) == []  # type: ignore[arg-type]
    assert statuses(results[:1], job) == [("completed", 1)]


def test_a_lock_met_by_a_fallback_leaves_the_result_as_it_is(
    engine: sa.Engine, queue: Queue, results: list[Result], job: Read, sql: Any
) -> None:
    sql(REFUSE.replace("END IF;", "END IF; IF NEW.status = 'pending' THEN RAISE lock_not_available; END IF;"))
    assert write_apart(Faulty(engine), queue, results[:1]) == results[:1]  # type: ignore[arg-type]
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    assert write_apart(Faulty(engine), queue, results[:1]) == []  # type: ignore[arg-type]
    assert statuses(results[:1], job) == [("completed", 1)]


def test_it_waits_briefly_for_locks(engine: sa.Engine, queue: Queue, results: list[Result]) -> None:
    """A row that somebody has locked holds up the others for no second each."""
    faulty = Faulty(engine)
    assert write_apart(faulty, queue, results) == []  # type: ignore[arg-type]
    assert faulty.lock_timeouts == ["50ms"]
