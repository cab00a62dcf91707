"""The negative controls of the counts under load: each finds what is done here by hand, and nothing in a sound run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import ClaimedJob
from tests.faults.load_counts import ALLOWED, Counts, count
from tests.faults.load_producer import Producer
from tests.faults.load_worker import END, END_KEYED, LEDGER, START, queue

tables = queue.tables


class Hand:
    """Does by hand what the producer, workers and handlers do, each step in a transaction of its own."""

    def __init__(self, engine: sa.Engine) -> None:
        # Under the name that it claims with.
        self.engine = sa.create_engine(engine.url, poolclass=sa.NullPool, connect_args={"application_name": "w1"})
        # Never started: what it knows is written down here.
        self.producer = Producer(engine.url.render_as_string(hide_password=False))
        self.sql(LEDGER)

    def sql(self, statement: str | sa.TextClause, **values: Any) -> None:
        with self.engine.begin() as conn:
            conn.execute(sa.text(statement) if isinstance(statement, str) else statement, values)

    def enqueue(self, name: str = "plain", known: str = "acknowledged") -> str:
        with self.engine.begin() as conn:
            id_ = queue.enqueue(conn, name, {"key": "a"} if name == "keyed" else {}).id
        if name != "react":
            getattr(self.producer, known).add(id_)
        return id_

    def claim(self, id_: str, *, lease: float = 60.0) -> ClaimedJob:
        with self.engine.begin() as conn:
            values = {"lock_token": new_id(), "locked_by": "w1", "lease": lease}
            (job,) = store.claim(conn, tables, candidate_ids=[id_], **values)
        return job

    def start(self, job: ClaimedJob) -> ClaimedJob:
        self.sql(START, id=job.id, token=job.lock_token, key="a" if job.mutex_keys else None)
        return job

    def end(self, job: ClaimedJob) -> None:
        self.sql(END_KEYED if job.mutex_keys else END, id=job.id, token=job.lock_token)

    def complete(self, job: ClaimedJob) -> None:
        with self.engine.begin() as conn:
            assert store.complete(conn, tables, jobs=[job])

    def run(self, name: str = "plain", known: str = "acknowledged") -> str:
        """From the enqueue to the end, as it should be."""
        self.end(job := self.start(self.claim(self.enqueue(name, known))))
        if name == "effect":
            self.effect(job.id)
        self.complete(job)
        return job.id

    def fail(self, name: str) -> str:
        """For good, and without its failure job."""
        job = self.start(self.claim(self.enqueue(name)))
        with self.engine.begin() as conn:
            store.fail(conn, tables, job=job, error="as it should", build_failure_job=None)
        return job.id

    def effect(self, id_: str) -> None:
        self.sql("INSERT INTO effects VALUES (:id)", id=id_)

    def count(self) -> Counts:
        return count(self.engine, self.producer)


@pytest.fixture
def hand(engine: sa.Engine) -> Hand:
    return Hand(engine)


def test_a_sound_run_has_no_faults(hand: Hand) -> None:
    """Completed, failed, and stalled jobs, with keys and effects; some unacknowledged, refused or rolled back."""
    for name in ("plain", "keyed", "keyed", "effect"):
        hand.run(name)
    hand.run(known="unknown")
    hand.producer.unknown.add("never came")
    hand.producer.refused.add("rolled back")
    hand.fail("discard")
    hand.run("react")
    late = hand.start(hand.claim(hand.enqueue("keyed")))
    stall(hand, late)
    again = hand.start(hand.claim(late.id))
    hand.end(late)  # nobody could stop it
    hand.end(again)
    hand.complete(again)
    counts = hand.count()
    assert counts.faults == {}
    assert (counts.jobs, counts.recovered, counts.repeated, counts.stalled) == (7, 1, 1, 1)


def stall(hand: Hand, job: ClaimedJob) -> None:
    """Its lease has ended and its keys have lingered."""
    hand.sql("UPDATE sqlane_jobs SET locked_until = now() - interval '1 s' WHERE id = :id", id=job.id)
    with hand.engine.begin() as conn:
        assert store.recover_stale(conn, tables, id=job.id, lease=60.0, stall_delay=0.0).status == "pending"
    hand.sql("DELETE FROM sqlane_mutexes")


def row_gone(hand: Hand) -> None:
    hand.producer.acknowledged.add("gone")


def never_done(hand: Hand) -> None:
    hand.enqueue()


def rolled_back_and_there(hand: Hand) -> None:
    hand.run(known="refused")


def run_of_no_job(hand: Hand) -> None:
    hand.sql(START, id="gone", token="t", key=None)


def started_once_too_often(hand: Hand) -> None:
    hand.sql(START, id=hand.run(), token="another", key=None)


def past_its_lease(hand: Hand) -> None:
    hand.start(hand.claim(id_ := hand.enqueue(known="unknown")))
    hand.sql("UPDATE sqlane_jobs SET locked_until = now() - interval '1 s', attempts = 1 WHERE id = :id", id=id_)


def failed_for_no_reason(hand: Hand) -> None:
    hand.fail("plain")


def failed_without_reaction(hand: Hand) -> None:
    hand.fail("discard")


def reacted_without_failure(hand: Hand) -> None:
    hand.run("react")


def no_effect(hand: Hand) -> None:
    hand.sql("DELETE FROM effects WHERE job_id = :id", id=hand.run("effect"))


def two_effects(hand: Hand) -> None:
    hand.effect(hand.run("effect"))


def key_taken_while_held(hand: Hand) -> None:
    first = hand.start(hand.claim(hand.enqueue("keyed")))
    hand.sql("DELETE FROM sqlane_mutexes")
    hand.run("keyed")
    hand.end(first)
    hand.complete(first)


def hold_left(hand: Hand) -> None:
    hand.sql("INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES ('a', 'gone', 'gone')")


def completed_by_another(hand: Hand) -> None:
    hand.end(job := hand.start(hand.claim(hand.enqueue())))
    with hand.engine.begin() as conn:
        conn.exec_driver_sql("SET LOCAL application_name = 'w2'")
        assert store.complete(conn, tables, jobs=[job])


def renewed_by_another(hand: Hand) -> None:
    hand.end(job := hand.start(hand.claim(hand.enqueue())))
    with hand.engine.begin() as conn:
        conn.exec_driver_sql("SET LOCAL application_name = 'w2'")
        assert store.renew_leases(conn, tables, jobs=[job], lease=60)
    hand.complete(job)


def taken_back_within_its_lease(hand: Hand) -> None:
    late = hand.start(hand.claim(hand.enqueue()))
    hand.sql(
        "UPDATE sqlane_jobs SET status = 'pending', stalls = stalls + 1, lock_token = NULL, locked_by = NULL,"
        " locked_until = NULL, started_at = NULL WHERE id = :id",
        id=late.id,
    )
    hand.end(again := hand.start(hand.claim(late.id)))
    hand.complete(again)


def changed_after_its_end(hand: Hand) -> None:
    hand.sql("UPDATE sqlane_jobs SET updated_at = now() WHERE id = :id", id=hand.run())


def younger_first(hand: Hand) -> None:
    """The older one was there when something else was written, before the younger one's claim."""
    older, younger = hand.enqueue("keyed"), hand.enqueue("keyed")
    hand.run()
    for id_ in (younger, older):
        hand.end(job := hand.start(hand.claim(id_)))
        hand.complete(job)


FAULTS: dict[str, tuple[Callable[[Hand], None], ...]] = {
    "lost": (row_gone, never_done),
    "phantom": (rolled_back_and_there, run_of_no_job),
    "unexplained": (started_once_too_often,),
    "stuck": (past_its_lease,),
    "failed": (failed_for_no_reason,),
    "reactions": (failed_without_reaction, reacted_without_failure),
    "effects": (no_effect, two_effects),
    "stale": (completed_by_another, renewed_by_another, taken_back_within_its_lease, changed_after_its_end),
    "overlaps": (key_taken_while_held,),
    "inversions": (younger_first,),
    "held": (hold_left,),
}


def test_each_count_has_its_control() -> None:
    assert FAULTS.keys() == set(Counts._fields) - set(ALLOWED)


@pytest.mark.parametrize(
    ("name", "deed"), [pytest.param(name, deed, id=deed.__name__) for name, deeds in FAULTS.items() for deed in deeds]
)
def test_a_count_finds_what_was_done_by_hand(hand: Hand, name: str, deed: Callable[[Hand], None]) -> None:
    """It alone, and once."""
    hand.run("keyed")
    deed(hand)
    assert hand.count().faults == {name: 1}


def test_what_came_late_is_no_inversion(hand: Hand) -> None:
    """The older one's transaction ended after the younger one's claim, or it was not due at it."""
    with hand.engine.connect() as conn, conn.begin():
        older = queue.enqueue(conn, "keyed", {"key": "a"}).id
        younger = hand.run("keyed")
    hand.producer.acknowledged.add(older)
    assert older < younger
    hand.end(job := hand.start(hand.claim(older)))
    hand.complete(job)
    assert hand.count().faults == {}
