"""What every queue has to be able to do, whatever its name, its schema, its revision and the role that uses it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, Worker, store
from sqlane_sa.store.candidates import WALKED
from sqlane_sa.store.claim import PUT_BACK
from sqlane_sa.store.last_step import complete_and_commit as complete_last
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import ClaimedJob

LEASE = 60.0


def use(engine: sa.Engine, queue: Queue) -> None:
    """Enqueue, work and count, as an application does."""
    done: list[object] = []
    if "greet" not in queue.definitions:
        queue.job("greet", mutex_keys=lambda name: [name])(lambda name: done.append(name))
    with engine.begin() as conn:
        jobs = queue.enqueue_many(conn, [queue.new("greet", name) for name in ("Ada", "Ada", "Bob")])
        assert queue.stats(conn)["greet"].pending == 3
    Worker(engine, queue, poll_interval=0.05).run_until_idle()
    with engine.connect() as conn:
        assert [job.status for one in jobs if (job := queue.get(conn, one.id))] == ["completed"] * 3
        assert queue.stats(conn) == {}


def insert(conn: sa.Connection, queue: Queue, name: str = "n", **options: Any) -> str:
    """One job named "n", which is dropped when it fails, or "kept"; its id."""
    if "n" not in queue.definitions:
        queue.define("n", failure_job="kept", failed_retention=0)
        queue.define("kept")
    job = queue.new(name, {"any": "payload"}, **options)
    return store.insert_jobs(conn, queue.tables, jobs=[job])[0].id


def complete_and_commit(conn: sa.Connection, queue: Queue) -> None:
    """What ends the transaction of a handler; this one has keys to free."""
    insert(conn, queue)
    [job] = store.claim_plain(conn, queue.tables, lanes=[("n", 0, 1)], lock_token=new_id(), locked_by="w", lease=LEASE)
    assert complete_last(conn, queue.tables, job=job._replace(mutex_keys=["k"]), idle_limit=LEASE)


def insert_many(conn: sa.Connection, queue: Queue) -> None:
    """Jobs named "n" by each of the statements that insert many."""
    alike = [queue.new("n", {"any": n}, delay=LEASE) for n in range(2)]
    different = [queue.new("n", {"any": n}, delay=LEASE, priority=n, mutex_keys=["many"]) for n in range(2)]
    for jobs in (alike, different):
        assert len(store.insert_jobs(conn, queue.tables, jobs=jobs)) == 2
    assert len(store.copy_jobs(conn, queue.tables, jobs=different)) == 2


def work(conn: sa.Connection, queue: Queue) -> None:
    """Everything that a worker does, once: with `insert` and `look`, every statement of the store."""
    tables = queue.tables
    fall_asleep(conn, queue)
    store.awake(conn, tables, worker_id="w")
    insert(conn, queue)
    insert(conn, queue, "kept")
    [job] = store.claim_plain(conn, tables, lanes=[("n", 0, 1)], lock_token=new_id(), locked_by="w", lease=LEASE)
    turn = store.complete_and_claim(
        conn, tables, jobs=[job], lanes=[("n", 0, 0)], after={}, lock_token=new_id(), locked_by="w", lease=LEASE
    )
    assert turn == ([], [])
    insert(conn, queue)
    [job] = store.claim_plain(conn, tables, lanes=[("n", 0, 1)], lock_token=new_id(), locked_by="w", lease=LEASE)
    assert store.complete_unlocked(conn, tables, jobs=[job]) == [job.id]
    insert(conn, queue)
    [job] = store.claim_plain(conn, tables, lanes=[("n", 0, 1)], lock_token=new_id(), locked_by="w", lease=LEASE)
    assert store.complete_free(conn, tables, jobs=[job]) == [job.id]
    _work_along_lines(conn, queue)
    insert(conn, queue)
    [job] = store.claim_plain(conn, tables, lanes=[("n", 0, 1)], lock_token=new_id(), locked_by="w", lease=LEASE)
    store.mark_timed_out(conn, tables, jobs=[job])
    store.retry(conn, tables, job=job, delay=0)
    insert(conn, queue, id=new_id(), delay=LEASE, mutex_keys=["k"])
    store.make_due(conn, tables, names=["n"])
    assert {name for name, _ in store.probe(conn, tables)} == {"n", "kept"}
    store.next_keyed(conn, tables, names=["n"])
    for end in (_release, _lose, _end):
        end(conn, queue, _claim(conn, queue))
        store.wake(conn, tables)
    _sweep(conn, queue)
    # What only a race and a long line bring about.
    conn.execute(PUT_BACK.on(tables), {"ids": ["none"], "lock_token": "none"})
    conn.execute(WALKED.on(tables), {"names": ["n"], "after_key": "", "heads": 9})


def _work_along_lines(conn: sa.Connection, queue: Queue) -> None:
    """Two jobs of one key, beside what waits already: the first found by a look and the second by its line."""
    tables = queue.tables
    terms: dict[str, Any] = {"names": ["n"], "limit": 9, "locked_by": "w", "lease": LEASE}
    first, second = (insert(conn, queue, delay=0, mutex_keys=["line"]) for _ in range(2))
    claimed = store.claim_keyed(conn, tables, lock_token=new_id(), **terms).jobs
    assert {first, second} & {job.id for job in claimed} == {first}
    assert "line" not in store.find_free_lines(conn, tables, names=["n"]).keys
    store.complete(conn, tables, jobs=claimed)
    assert "line" in store.find_free_lines(conn, tables, names=["n"]).keys
    claimed = store.claim_heads(conn, tables, keys=["line"], lock_token=new_id(), **terms)
    assert [job.id for job in claimed] == [second]
    assert store.complete_keyed(conn, tables, jobs=claimed) == [second]


def fall_asleep(conn: sa.Connection, queue: Queue) -> None:
    store.fall_asleep(conn, queue.tables, worker_id="w", duration=LEASE)
    assert store.worker_seen(conn, queue.tables)


def look(conn: sa.Connection, queue: Queue, id: str = "none") -> None:
    """What somebody who may only read does."""
    store.read_revision(conn, queue.tables)
    store.find_overdue(conn, queue.tables, limit=1)
    store.get(conn, queue.tables, id=id)
    store.stats(conn, queue.tables)
    store.count_completed(conn, queue.tables, max_bytes=2**30)
    store.running_names(conn, queue.tables)
    store.find_failed(conn, queue.tables, limit=9)
    store.failed_ids(conn, queue.tables, name="n", limit=9)
    store.count_failed(conn, queue.tables, within=LEASE, limit=9)
    store.health(conn, queue.tables)
    store.missing_rights(conn, queue.tables)


def _claim(conn: sa.Connection, queue: Queue) -> list[ClaimedJob]:
    ids = store.find_candidates(conn, queue.tables, limits_by_name={"n": 9, "kept": 9})
    claimed = store.claim(conn, queue.tables, candidate_ids=ids, lock_token=new_id(), locked_by="w", lease=LEASE)
    assert {bool(job.mutex_keys) for job in claimed} == {True, False}
    recalled = store.recall(conn, queue.tables, lock_tokens=[claimed[0].lock_token], lease=LEASE)
    assert {job.id for job in recalled} == {job.id for job in claimed}
    store.read_payloads(conn, queue.tables, ids=ids)
    assert store.renew_leases(conn, queue.tables, jobs=claimed, lease=LEASE)
    assert store.find_held(conn, queue.tables, jobs=claimed)
    assert store.find_locked(conn, queue.tables, jobs=claimed) == set()
    return claimed


def _release(conn: sa.Connection, queue: Queue, jobs: list[ClaimedJob]) -> None:
    for job in jobs:
        assert store.release(conn, queue.tables, job=job, delay=0)


def _lose(conn: sa.Connection, queue: Queue, jobs: list[ClaimedJob]) -> None:
    store.renew_leases(conn, queue.tables, jobs=jobs, lease=0)
    for id in store.find_stale(conn, queue.tables, limit=9):
        assert store.recover_stale(conn, queue.tables, id=id, lease=LEASE, stall_delay=0).status == "pending"
    assert store.next_linger_end(conn, queue.tables)
    conn.execute(sa.update(queue.tables.mutexes).values(held_until=sa.func.statement_timestamp()))


def _end(conn: sa.Connection, queue: Queue, jobs: list[ClaimedJob]) -> None:
    """All fail but those with keys; the failure jobs come."""
    for job in jobs:
        if not job.mutex_keys:
            result = store.fail(conn, queue.tables, job=job, error=None, build_failure_job=queue.build_failure_job)
            assert result.changed and bool(result.failure_job_id) == (job.name == "n"), result
    assert store.complete(conn, queue.tables, jobs=[job for job in jobs if job.mutex_keys], idle_limit=LEASE)


def _sweep(conn: sa.Connection, queue: Queue) -> None:
    tables = queue.tables
    store.sweep_mutexes(conn, tables, limit=9)
    store.sweep_waits(conn, tables, limit=9)
    store.sweep_sleepers(conn, tables)
    store.first_expired(conn, tables)
    store.delete_expired(conn, tables, limit=9)
    failed = store.failed_ids(conn, tables, name="kept", limit=9)
    assert store.retry_failed(conn, tables, ids=failed) == failed != []
