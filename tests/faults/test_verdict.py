"""The negative controls of the chaos run's counts: each finds what is done here by hand, and nothing in a sound run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.demo.server import Server
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import ClaimedJob, NewJob
from tests.conftest import memory_folder, new_database
from tests.faults.counts import COUNTS
from tests.faults.history import Window
from tests.faults.ledger import NOTE
from tests.faults.verdict import Times, Verdict, judge, quiet_seconds
from tests.faults.workload import queue
from tests.faults.world import DATABASE, SETTINGS, make_database

TIMES = Times(lease=4.0, sweep=1.0, poll=0.5)
tables = queue.tables


class Hand:
    """Does by hand what producers, workers and handlers do, each step in a transaction of its own."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    def sql(self, statement: str, **values: Any) -> None:
        with self.engine.begin() as conn:
            conn.execute(sa.text(statement), values)

    def unnoticed(self, statement: str, **values: Any) -> None:
        """Past the triggers of the ledger."""
        with self.engine.begin() as conn:
            conn.exec_driver_sql("SET LOCAL session_replication_role = replica")
            conn.execute(sa.text(statement), values)

    def enqueue(self, name: str = "plain", keys: str = "", *, outcome: str = "ack", payload: Any = None) -> str:
        with self.engine.begin() as conn:
            job = queue.enqueue(conn, name, payload or {}, mutex_keys=list(keys))
        self.sql("INSERT INTO produced VALUES (:id, :outcome)", id=job.id, outcome=outcome)
        return job.id

    def claim(self, id_: str, worker: str = "w1") -> ClaimedJob:
        def claim(conn: sa.Connection) -> list[ClaimedJob]:
            values = {"lock_token": new_id(), "locked_by": worker, "lease": TIMES.lease}
            return store.claim(conn, tables, candidate_ids=[id_], **values)

        (job,) = self.as_worker(worker, claim)
        return job

    def as_worker(self, worker: str, write: Callable[[sa.Connection], Any]) -> Any:
        with self.engine.begin() as conn:
            conn.execute(sa.text("SELECT set_config('application_name', :name, true)"), {"name": worker})
            return write(conn)

    def note(self, job: ClaimedJob, *events: str) -> None:
        for event in events:
            with self.engine.begin() as conn:
                conn.execute(NOTE, {"job_id": job.id, "token": job.lock_token, "worker": "w1", "event": event})

    def complete(self, job: ClaimedJob, worker: str = "w1") -> None:
        assert self.as_worker(worker, lambda conn: store.complete(conn, tables, jobs=[job]))

    def run(self, id_: str) -> ClaimedJob:
        """From the claim to the end, as it should be."""
        job = self.claim(id_)
        self.note(job, "start", "end")
        self.complete(job)
        return job

    def release(self, job: ClaimedJob) -> None:
        assert self.as_worker("w1", lambda conn: store.release(conn, tables, job=job))

    def fail(self, job: ClaimedJob, build: Callable[..., NewJob | None] | None = queue.build_failure_job) -> str | None:
        def fail(conn: sa.Connection) -> str | None:
            return store.fail(conn, tables, job=job, error="no", build_failure_job=build).failure_job_id

        reaction: str | None = self.as_worker("w1", fail)
        return reaction

    def end_lease(self, job: ClaimedJob) -> None:
        self.unnoticed(
            "UPDATE sqlane_jobs SET locked_until = clock_timestamp() - interval '1 ms' WHERE id = :id", id=job.id
        )

    def recover(self, job: ClaimedJob) -> None:
        def recover(conn: sa.Connection) -> store.Recovery:
            return store.recover_stale(conn, tables, id=job.id, lease=TIMES.lease, stall_delay=0.0)

        assert self.as_worker("w2", recover).status == "pending"

    def effect(self, id_: str, account: str | None = None) -> None:
        self.sql("INSERT INTO effects VALUES (:id, :account)", id=id_, account=account)

    def verdict(self, *outages: Window) -> Verdict:
        with self.engine.begin() as conn:
            return judge(conn, TIMES, outages, outages)

    def found(self, name: str) -> int:
        return self.verdict().value(name)


@pytest.fixture(scope="module")
def ledger_server() -> Iterator[Server]:
    settings = {**SETTINGS, "full_page_writes": False}
    with Server(fsync=False, tcp=True, settings=settings, parent=memory_folder()) as server:
        make_database(server)
        yield server


@pytest.fixture
def hand(ledger_server: Server) -> Iterator[Hand]:
    admin = sa.create_engine(ledger_server.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with new_database(admin, DATABASE) as name:
        engine = sa.create_engine(ledger_server.url(name))
        yield Hand(engine)
        engine.dispose()


def end_linger(hand: Hand) -> None:
    hand.sql("DELETE FROM sqlane_mutexes")
    hand.sql("UPDATE lingers SET held_until = clock_timestamp()")


def test_a_sound_run_has_no_findings(hand: Hand) -> None:
    """Completed, retried, released, stalled and failed jobs, with keys and effects."""
    for keys in ("", "a", "ab", "b"):
        hand.run(hand.enqueue("keyed", keys))
    effect = hand.enqueue("effect")
    hand.effect(hand.run(effect).id)
    account = hand.enqueue("account", "c", payload={"keys": ["c"]})
    hand.effect(hand.run(account).id, "c")
    hand.sql("INSERT INTO accounts VALUES ('c', 1)")
    again = hand.enqueue("keyed", "a")
    job = hand.claim(again)
    hand.note(job, "start", "end")
    hand.as_worker("w1", lambda conn: store.retry(conn, tables, job=job))
    job = hand.claim(again)
    hand.note(job, "start", "end")
    hand.release(job)
    job = hand.claim(again)
    hand.note(job, "start")
    hand.end_lease(job)
    hand.recover(job)
    end_linger(hand)
    hand.run(again)
    failed = hand.claim(hand.enqueue("doomed"))
    hand.note(failed, "start", "end")
    reaction = hand.fail(failed)
    assert reaction is not None
    hand.run(reaction)
    hand.sql("INSERT INTO reactions VALUES (:failed, :id)", failed=failed.id, id=reaction)
    hand.sql("INSERT INTO produced VALUES ('rolled back', 'abort'), ('never came', 'unknown')")
    verdict = hand.verdict()
    assert [(one.name, one.value, one.examples) for one in verdict.counts if one.value] == []
    assert verdict.kept
    expected = {"jobs": 9, "completed": 8, "failed for good": 1, "claims": 12, "retries": 1, "releases": 1, "stalls": 1}
    assert verdict.figures == expected | {"repeated": 1}


def row_gone(hand: Hand) -> None:
    hand.unnoticed("DELETE FROM sqlane_jobs WHERE id = :id", id=hand.run(hand.enqueue()).id)


def payload_gone(hand: Hand) -> None:
    hand.sql("DELETE FROM sqlane_payloads WHERE id = :id", id=hand.enqueue())


def place_in_line_gone(hand: Hand) -> None:
    hand.sql("DELETE FROM sqlane_waits WHERE job_id = :id AND mutex_key = 'b'", id=hand.enqueue("keyed", "ab"))


def child_gone(hand: Hand) -> None:
    hand.sql("INSERT INTO children VALUES (:id, 'gone')", id=hand.run(hand.enqueue("parent")).id)


def still_pending(hand: Hand) -> None:
    hand.enqueue()


def still_running(hand: Hand) -> None:
    hand.claim(hand.enqueue())


def past_its_lease(hand: Hand) -> None:
    job = hand.claim(hand.enqueue())
    hand.unnoticed("UPDATE sqlane_jobs SET locked_until = clock_timestamp() - interval '3 s' WHERE id = :id", id=job.id)


def nobodys(hand: Hand) -> None:
    with hand.engine.begin() as conn:
        queue.enqueue(conn, "plain")


def rolled_back_and_there(hand: Hand) -> None:
    hand.run(hand.enqueue(outcome="abort"))


def unknown_and_there(hand: Hand) -> None:
    hand.run(hand.enqueue(outcome="unknown"))


def started_twice_in_one_claim(hand: Hand) -> None:
    hand.note(hand.run(hand.enqueue()), "start")


def started_without_a_claim(hand: Hand) -> None:
    hand.note(hand.run(hand.enqueue())._replace(lock_token="another"), "start")


def started_once_too_often(hand: Hand) -> None:
    """The claim after a release that is not in the history."""
    job = hand.claim(id_ := hand.enqueue())
    hand.note(job, "start")
    hand.unnoticed("UPDATE sqlane_jobs SET status = 'pending', lock_token = NULL WHERE id = :id", id=id_)
    hand.run(id_)


def completed_by_another(hand: Hand) -> None:
    hand.note(job := hand.claim(hand.enqueue()), "start")
    hand.complete(job, "w2")


def renewed_by_another(hand: Hand) -> None:
    hand.note(job := hand.claim(hand.enqueue()), "start")
    assert hand.as_worker("w2", lambda conn: store.renew_leases(conn, tables, jobs=[job], lease=4.0))
    hand.complete(job)


def completed_twice(hand: Hand) -> None:
    hand.sql("UPDATE sqlane_jobs SET finished_at = now() WHERE id = :id", id=hand.run(hand.enqueue()).id)


def completed_without_a_run(hand: Hand) -> None:
    hand.complete(hand.claim(hand.enqueue()))


def taken_back_early(hand: Hand) -> None:
    hand.note(hand.claim(id_ := hand.enqueue()), "start")
    hand.sql("UPDATE sqlane_jobs SET status = 'pending', stalls = 1 WHERE id = :id", id=id_)
    hand.run(id_)


def deleted(hand: Hand) -> None:
    hand.sql("DELETE FROM sqlane_jobs WHERE id = :id", id=hand.run(hand.enqueue()).id)


def key_taken_while_held(hand: Hand) -> None:
    hand.note(first := hand.claim(hand.enqueue("keyed", "a")), "start")
    hand.sql("DELETE FROM sqlane_mutexes")
    hand.run(hand.enqueue("keyed", "ab"))
    hand.complete(first)


def key_taken_while_it_lingers(hand: Hand) -> None:
    hand.note(first := hand.claim(hand.enqueue("keyed", "a")), "start")
    hand.end_lease(first)
    hand.recover(first)
    hand.sql("DELETE FROM sqlane_mutexes")
    hand.run(first.id)


def key_freed_before_the_handler_returned(hand: Hand) -> None:
    hand.note(first := hand.claim(hand.enqueue("keyed", "a")), "start")
    hand.complete(first)
    hand.run(hand.enqueue("keyed", "a"))
    hand.note(first, "end")


def key_freed_before_a_fenced_handler_returned(hand: Hand) -> None:
    hand.note(first := hand.claim(hand.enqueue("keyed", "a")), "start")
    hand.end_lease(first)
    hand.recover(first)
    end_linger(hand)
    hand.run(first.id)
    hand.note(first, "end")


def younger_first(hand: Hand) -> None:
    younger_after(hand, "3 s")


def younger_after(hand: Hand, visible: str) -> None:
    older, younger = hand.enqueue("keyed", "ab"), hand.enqueue("keyed", "b")
    hand.run(younger)
    hand.run(older)
    hand.sql(
        f"UPDATE moves SET committed_at = committed.at - interval '{visible}' FROM (SELECT begun_at AS at FROM moves"
        " WHERE job_id = :younger AND event = 'claim') AS committed WHERE job_id = :older AND event = 'insert'",
        younger=younger,
        older=older,
    )


def failed_without_reaction(hand: Hand) -> None:
    hand.note(job := hand.claim(hand.enqueue("doomed")), "start")
    hand.fail(job, None)


def reacted_twice(hand: Hand) -> None:
    hand.note(job := hand.claim(hand.enqueue("doomed")), "start")
    reaction = hand.fail(job)
    hand.sql("INSERT INTO reactions VALUES (:failed, :id)", failed=job.id, id=reaction)
    hand.sql("INSERT INTO reactions VALUES (:failed, 'another')", failed=job.id)


def reacted_without_failure(hand: Hand) -> None:
    done = hand.run(hand.enqueue())
    reaction = hand.run(hand.enqueue("react"))
    hand.sql("INSERT INTO reactions VALUES (:failed, :id)", failed=done.id, id=reaction.id)


def no_effect(hand: Hand) -> None:
    hand.run(hand.enqueue("effect"))


def two_effects(hand: Hand) -> None:
    job = hand.run(hand.enqueue("effect"))
    hand.effect(job.id)
    hand.effect(job.id)


def effect_of_a_released_job(hand: Hand) -> None:
    job = hand.claim(hand.enqueue("effect"))
    hand.effect(job.id)
    hand.release(job)


def balance_off(hand: Hand) -> None:
    hand.effect(hand.run(hand.enqueue("account", payload={"keys": ["c"]})).id, "c")
    hand.sql("INSERT INTO accounts VALUES ('c', 2)")


def hold_left(hand: Hand) -> None:
    hand.sql("INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES ('a', 'gone', 'gone')")


def linger_left(hand: Hand) -> None:
    hold_left(hand)
    hand.unnoticed("UPDATE sqlane_mutexes SET held_until = clock_timestamp() - interval '3 s'")


def place_left(hand: Hand) -> None:
    hand.sql("INSERT INTO sqlane_waits VALUES ('a', now(), :id)", id=hand.run(hand.enqueue()).id)


def payload_left(hand: Hand) -> None:
    hand.sql("INSERT INTO sqlane_payloads VALUES (:id, '{}')", id=hand.run(hand.enqueue()).id)


FINDINGS: dict[str, tuple[Callable[[Hand], None], ...]] = {
    "lost": (row_gone, payload_gone, place_in_line_gone, child_gone),
    "left undone": (still_pending, still_running),
    "stuck": (past_its_lease,),
    "phantom": (nobodys, rolled_back_and_there),
    "recovered": (unknown_and_there,),
    "unexplained starts": (started_twice_in_one_claim, started_without_a_claim, started_once_too_often),
    "stale writes accepted": (
        completed_by_another,
        renewed_by_another,
        completed_twice,
        completed_without_a_run,
        taken_back_early,
        deleted,
    ),
    "overlaps per key": (key_taken_while_held, key_taken_while_it_lingers),
    "handlers side by side": (key_freed_before_the_handler_returned,),
    "handlers fenced off": (key_freed_before_a_fenced_handler_returned,),
    "order inversions per key": (younger_first,),
    "failures without their job": (failed_without_reaction, reacted_twice, reacted_without_failure),
    "effects not exactly once": (no_effect, two_effects, effect_of_a_released_job, balance_off),
    "rows left over": (hold_left, linger_left, place_left, payload_left),
}


def test_each_count_has_its_control() -> None:
    assert FINDINGS.keys() == {count.name for count in COUNTS}


@pytest.mark.parametrize(
    ("name", "deed"), [pytest.param(name, deed, id=deed.__name__) for name, deeds in FINDINGS.items() for deed in deeds]
)
def test_a_count_finds_what_was_done_by_hand(hand: Hand, name: str, deed: Callable[[Hand], None]) -> None:
    deed(hand)
    verdict = hand.verdict()
    assert verdict.value(name) >= 1
    allowed = next(count.allowed for count in COUNTS if count.name == name)
    assert verdict.kept == allowed


def test_a_fenced_handler_counts_for_nothing_else(hand: Hand) -> None:
    """What goes on after its lease and its linger cannot be stopped by anybody."""
    key_freed_before_a_fenced_handler_returned(hand)
    assert hand.verdict().kept


def test_a_linger_ends_with_its_handler(hand: Hand) -> None:
    """The late write of the one who held the key changes nothing of the job, and frees the key."""
    hand.note(first := hand.claim(hand.enqueue("keyed", "a")), "start")
    hand.end_lease(first)
    hand.recover(first)
    hand.note(first, "end")
    assert not hand.as_worker("w1", lambda conn: store.complete(conn, tables, jobs=[first]))
    hand.run(first.id)
    assert hand.verdict().kept


def test_what_was_committed_just_before_the_claim_is_no_inversion(hand: Hand) -> None:
    """The claim may not have seen it."""
    younger_after(hand, "1 s")
    assert hand.found("order inversions per key") == 0


def test_what_was_claimed_in_order_is_no_inversion(hand: Hand) -> None:
    first, second = hand.enqueue("keyed", "ab"), hand.enqueue("keyed", "b")
    hand.run(first)
    hand.run(second)
    hand.sql("UPDATE moves SET committed_at = at - interval '9 s' WHERE event = 'insert'")
    assert hand.found("order inversions per key") == 0


def test_idle_workers_with_a_due_job_are_found(hand: Hand) -> None:
    """But not while there was an outage."""
    hand.run(hand.enqueue())
    assert hand.verdict().kept
    hand.sql(
        "UPDATE moves SET at = at - interval '60 s', run_at = run_at - interval '60 s',"
        " committed_at = at - interval '60 s' WHERE event = 'insert'"
    )
    idle = hand.verdict().recoveries[0]
    assert not idle.kept and 59 < idle.longest < 70
    with hand.engine.connect() as conn:
        now = float(conn.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
    assert hand.verdict(Window("server crash", now - 61, now - 1)).recoveries[0].kept
    assert not hand.verdict(Window("server crash", now - 61, now - 30)).recoveries[0].kept


def test_a_job_that_is_taken_back_late_is_found(hand: Hand) -> None:
    hand.note(job := hand.claim(hand.enqueue()), "start")
    hand.end_lease(job)
    hand.recover(job)
    assert hand.verdict().recoveries[1].kept
    hand.sql("UPDATE moves SET lease_end = lease_end - interval '60 s' WHERE event = 'stall'")
    stalled = hand.verdict().recoveries[1]
    assert not stalled.kept and 59 < stalled.longest < 70


def test_quiet_seconds_begin_after_the_last_outage() -> None:
    outages = [Window("a", 10, 20), Window("b", 15, 30), Window("c", 50, 60)]
    assert quiet_seconds(0, 5, outages) == 5
    assert quiet_seconds(12, 40, outages) == 10
    assert quiet_seconds(5, 18, outages) == 0
    assert quiet_seconds(32, 45, outages) == 13
