"""The checks that a bug must fail, by name; each on a migrated database of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.model import bugs
from tests.model.machine import run_sequences
from tests.model.permutations import Stage, pairs, play_pairs
from tests.model.rows import Lock
from tests.model.scenes import ALONE, OPERATIONS, SCENES
from tests.store.races import committed, rival
from tests.store.steps import add, claim, end_lease, end_lingers, holds, job_row, rows, run, running
from tests.store.test_stale_tokens import everything
from tests.store.writes import WRITES

Check = Callable[[sa.Engine], None]
QUEUE = Queue()
TABLES = QUEUE.tables
CI_SEQUENCES = 200
HELD_OUT = "SET LOCAL lock_timeout = '100ms'"


def sequences(engine: sa.Engine) -> None:
    run_sequences(engine, CI_SEQUENCES, shrink=False)


def operations(engine: sa.Engine) -> None:
    """Each operation alone, in each scene."""
    stage = Stage(engine)
    try:
        for scene, operation in itertools.product(SCENES, (*OPERATIONS.values(), *ALONE.values())):
            stage.play_alone(scene, operation)
    finally:
        stage.close()


PAIRS = (
    *(("expired", "take over", f"old: {what}") for what in ("complete", "renew", "mark", "retry")),
    ("expired", "old: complete", "recover, if it is stale"),
    ("again", "take over", "claim next"),
    ("again, kept for 0 s", "take over", "new: complete"),
    ("again, kept for 0 s", "without keys: take over", "without keys, new: turn"),
    ("again", "claim plain", "claim plain"),
    ("again", "claim other", "claim other"),
    ("again", "claim other", "sweep"),
)


def permutations(engine: sa.Engine) -> None:
    """Pairs of which each shows another missing lock, at every barrier."""
    assert set(PAIRS) <= set(pairs())
    stage = Stage(engine)
    try:
        play_pairs(stage, PAIRS)
    finally:
        stage.close()


def prepared(engine: sa.Engine) -> list[str]:
    """Of everything that is skipped when it is locked, two: one to lock and one that goes on."""

    def prepare(conn: sa.Connection) -> list[str]:
        for key in ("l1", "l2"):
            store.release(conn, TABLES, job=running(conn, QUEUE, mutex_keys=[key]), linger=60, delay=600)
        end_lingers(conn)
        run(conn, "INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES ('o1', '', ''), ('o2', '', '')")
        done = [running(conn, QUEUE, "done", token="done") for _ in range(2)]
        store.complete(conn, TABLES, jobs=done)
        run(conn, "UPDATE sqlane_jobs SET expires_at = statement_timestamp() WHERE status = 'completed'")
        return [job.id for job in done]

    return committed(engine, prepare)


def locked_rows(engine: sa.Engine) -> None:
    """Whoever skips locked rows does its work on the others while one is locked, and waits for nobody."""
    for look in (sweep_with_a_locked_row, expiry_with_a_locked_row, jobs_with_a_locked_row):
        with engine.connect() as one, engine.connect() as two:
            look(engine, one, two)


def sweep_with_a_locked_row(engine: sa.Engine, one: sa.Connection, two: sa.Connection) -> None:
    prepared(engine)
    run(one, "SELECT FROM sqlane_mutexes WHERE mutex_key IN ('l1', 'o1') FOR UPDATE")
    two.exec_driver_sql(HELD_OUT)
    assert store.sweep_mutexes(two, TABLES, limit=100) == (1, 1)
    assert set(holds(two)) == {"l1", "o1"}


def expiry_with_a_locked_row(engine: sa.Engine, one: sa.Connection, two: sa.Connection) -> None:
    expired = rows(one, "SELECT id FROM sqlane_jobs WHERE status = 'completed' ORDER BY id")
    run(one, "SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE", id=expired[0])
    two.exec_driver_sql(HELD_OUT)
    assert store.delete_expired(two, TABLES, limit=100) == len(expired) - 1


def jobs_with_a_locked_row(engine: sa.Engine, one: sa.Connection, two: sa.Connection) -> None:
    pending = committed(engine, lambda conn: [add(conn, QUEUE, "p") for _ in range(3)])
    jobs = committed(engine, lambda conn: [running(conn, QUEUE, "r", token=f"r{n}") for n in range(2)])
    ids = [job.id for job in jobs]
    committed(engine, lambda conn: end_lease(conn, *ids))
    run(one, "SELECT FROM sqlane_jobs WHERE id = ANY(:ids) FOR UPDATE", ids=[ids[0], pending[0]])
    two.exec_driver_sql(HELD_OUT)
    lanes = [("p", 0, 10)]
    by: Any = {"lock_token": "t", "locked_by": "w", "lease": 60}
    # First: what the others leave behind where they are rolled back, it passes over.
    turn = store.complete_and_claim(two, TABLES, jobs=jobs, lanes=lanes, after={}, **by)
    assert turn.skipped == ids[:1]
    assert [job.id for job in turn.claimed] == pending[1:]
    two.rollback()
    two.exec_driver_sql(HELD_OUT)
    assert [job.id for job in claim(two, QUEUE, *pending[:2])] == pending[1:2]
    started = store.claim_plain(two, TABLES, lanes=lanes, lock_token="t", locked_by="w", lease=60)
    assert [job.id for job in started] == pending[2:]
    assert store.mark_timed_out(two, TABLES, jobs=jobs) == ids[1:]
    recovered = [store.recover_stale(two, TABLES, id=id_, lease=60).status for id_ in ids]
    assert recovered == [None, "pending"]
    two.rollback()
    two.exec_driver_sql(HELD_OUT)
    assert store.renew_leases(two, TABLES, jobs=jobs, lease=60) == ids[1:]
    assert store.complete_unlocked(two, TABLES, jobs=jobs) == ids[1:]


def times_after_a_wait(engine: sa.Engine) -> None:
    """A write that has waited takes its times from after the wait."""
    job = committed(engine, lambda conn: running(conn, QUEUE))
    with engine.connect() as one:
        run(one, "SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE", id=job.id)
        with rival(engine, lambda conn: store.complete(conn, TABLES, jobs=[job])) as result:
            waited_until = rows(one, "SELECT clock_timestamp()")[0]
            one.rollback()
        assert result.result() == [job.id]
        assert rows(one, "SELECT finished_at FROM sqlane_jobs WHERE id = :id", id=job.id)[0] > waited_until


def ended_by_hand(engine: sa.Engine) -> None:
    """Somebody has set the status of a running job, and left the lock in its columns: no write touches it any more,
    and its keys are swept. So are the keys of an older lock whose job runs again."""
    for status in ("completed", "failed", "pending"):
        with engine.connect() as conn:
            job = running(conn, QUEUE, "h", token="hand", mutex_keys=["h"])
            run(conn, "UPDATE sqlane_jobs SET status = :status WHERE id = :id", status=status, id=job.id)
            before = everything(conn)
            for name, write in WRITES.items():
                write(conn, QUEUE, Lock(job.id, job.lock_token))
                assert everything(conn) == before, f"{name} has changed a job that is {status}"
            recalled = store.recall(conn, TABLES, lock_tokens=[job.lock_token], lease=60)
            assert not recalled, f"a job that is {status} was recalled"
            assert everything(conn) == before, f"recall has changed a job that is {status}"
    with engine.connect() as conn:
        gone, again = (running(conn, QUEUE, "h", token="hand", mutex_keys=[key]) for key in "gh")
        run(conn, "UPDATE sqlane_jobs SET status = 'completed' WHERE id = :id", id=gone.id)
        run(conn, "UPDATE sqlane_jobs SET lock_token = 'newer' WHERE id = :id", id=again.id)
        assert job_row(conn, again.id)["status"] == "running"
        assert store.sweep_mutexes(conn, TABLES, limit=100).orphans == 2


CHECKS: Mapping[str, Check] = {
    bugs.SEQUENCES: sequences,
    bugs.OPERATIONS: operations,
    bugs.PERMUTATIONS: permutations,
    bugs.LOCKED_ROWS: locked_rows,
    bugs.WAITS: times_after_a_wait,
    bugs.HAND: ended_by_hand,
}
