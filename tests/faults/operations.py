"""What is cut: each operation of the store as the worker runs it, and enqueue in a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import ClaimedJob

LEASE = 600.0
"""Seconds; in a state it is "later", and what `prepare` leaves is "soon" or "past"."""
KEYS = ["a", "b"]
ERROR = {"type": "ValueError", "message": "no"}

Prepare = Callable[[sa.Connection, Queue], Any]
Run = Callable[[sa.Connection, Queue, Any], Any]


def new_queue() -> Queue:
    queue = Queue()
    queue.define("plain")
    queue.define("keyed", mutex_keys=KEYS, failure_job="sorry", failed_retention=1000)
    queue.define("sorry")
    return queue


@dataclass(frozen=True)
class Operation:
    """`prepare` makes a subject, `run` is what is cut, and `again` what its caller does about an unknown outcome.

    `by_worker`: in a transaction of the worker's `Database`, otherwise in one of the caller's own.
    """

    name: str
    prepare: Prepare
    run: Run
    again: Run | None = None
    by_worker: bool = True
    reads: bool = False
    """Whether it changes nothing."""
    alone: bool = False
    """One statement that is its own transaction."""

    def __str__(self) -> str:
        return self.name


def due(conn: sa.Connection, queue: Queue) -> list[str]:
    """Two jobs, one with keys."""
    jobs = [queue.new("plain", {"n": 1}), queue.new("keyed", {"n": 2})]
    return [enqueued.id for enqueued in queue.enqueue_many(conn, jobs)]


def running(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    """A running job with two keys; another waits for them, and so does a sleeping worker."""
    first = queue.enqueue(conn, "keyed", {"n": 1}).id
    queue.enqueue(conn, "keyed", {"n": 2})
    store.fall_asleep(conn, queue.tables, worker_id="sleeper", duration=LEASE)
    return store.claim(conn, queue.tables, candidate_ids=[first], lock_token=new_id(), locked_by="worker", lease=60)[0]


def stale(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    job = running(conn, queue)
    jobs = queue.tables.jobs
    past = sa.func.statement_timestamp() - sa.text("interval '1 second'")
    conn.execute(jobs.update().where(jobs.c.id == job.id).values(locked_until=past))
    return job


def stale_for_good(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    job = stale(conn, queue)
    jobs = queue.tables.jobs
    conn.execute(jobs.update().where(jobs.c.id == job.id).values(stalls=jobs.c.max_stalls))
    return job


def swept(conn: sa.Connection, queue: Queue) -> None:
    """A linger that has ended, a hold without its job, a place in a line without its job, a dead sleeper."""
    tables = queue.tables
    now = sa.func.statement_timestamp()
    hold = {"job_id": "gone", "lock_token": new_id()}
    conn.execute(tables.mutexes.insert().values(mutex_key="linger", held_until=now, **hold))
    conn.execute(tables.mutexes.insert().values(mutex_key="orphan", **hold))
    conn.execute(tables.waits.insert().values(mutex_key="left over", run_at=now, job_id="gone"))
    conn.execute(tables.sleepers.insert().values(worker_id="dead", asleep_until=now))


def expired(conn: sa.Connection, queue: Queue) -> None:
    """A completed and a failed job past their retention, and one that is not."""
    jobs = queue.tables.jobs
    past = sa.func.statement_timestamp() - sa.text("interval '1 second'")
    for status, at in (("completed", past), ("failed", past), ("failed", None)):
        id_ = queue.enqueue(conn, "plain", {"status": status}).id
        conn.execute(jobs.update().where(jobs.c.id == id_).values(status=status, expires_at=at))


def claim_plain(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    lanes = [("plain", 0, 5)]
    return store.claim_plain(conn, queue.tables, lanes=lanes, lock_token=new_id(), locked_by="worker", lease=LEASE)


def claim_keyed(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    by: Any = {"lock_token": new_id(), "locked_by": "worker", "lease": LEASE}
    claimed = store.claim_keyed(conn, queue.tables, names=["keyed"], limit=5, **by).jobs
    store.next_keyed(conn, queue.tables, names=["keyed"])
    return claimed


def claim_heads(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    by: Any = {"lock_token": new_id(), "locked_by": "worker", "lease": LEASE}
    return store.claim_heads(conn, queue.tables, keys=KEYS, names=["keyed"], limit=5, **by)


def claim_apart(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    """Around odd rows."""
    tables = queue.tables
    ids = store.find_keyed_candidates(conn, tables, limits_by_name={"keyed": 5})
    claimed = store.claim(conn, tables, candidate_ids=ids, lock_token=new_id(), locked_by="worker", lease=LEASE)
    store.read_payload_texts(conn, tables, [job.id for job in claimed])
    store.next_keyed(conn, tables, names=["keyed"])
    return claimed


def candidates(conn: sa.Connection, queue: Queue, _: Any) -> Any:
    limits = {"plain": 5, "keyed": 5}
    return store.find_candidates(conn, queue.tables, limits_by_name=limits, keyed_names={"keyed"})


def retry(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> Any:
    write = store.RetryWrite(job.id, job.lock_token, LEASE, ERROR, job.mutex_keys)
    return store.retry_many(conn, queue.tables, retries=[write])


def release(conn: sa.Connection, queue: Queue, job: ClaimedJob, linger: float | None = None) -> Any:
    write = store.ReleaseWrite(job.id, job.lock_token, LEASE, linger, job.mutex_keys)
    return store.release_many(conn, queue.tables, releases=[write])


def fail(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> Any:
    return store.fail(conn, queue.tables, job=job, error=ERROR, build_failure_job=queue.build_failure_job)


def recover(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> Any:
    recovery = store.recover_stale(
        conn,
        queue.tables,
        id=job.id,
        lease=LEASE,
        stall_delay=LEASE,
        build_failure_job=queue.build_failure_job,
    )
    store.wake(conn, queue.tables)
    return recovery


def sweep_lines(conn: sa.Connection, queue: Queue, _: Any) -> None:
    store.sweep_waits(conn, queue.tables, limit=100)
    store.sweep_sleepers(conn, queue.tables)


def turn(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> store.Turn:
    """What the loop does with jobs without keys."""
    lanes = [("plain", 0, 5)]
    return store.complete_and_claim(
        conn, queue.tables, jobs=[job], lanes=lanes, after={}, lock_token=new_id(), locked_by="worker", lease=LEASE
    )


def long_turn(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """What the loop does with the others in one transaction: write, look and claim."""
    store.complete(conn, queue.tables, jobs=[job])
    store.probe_lanes(conn, queue.tables)
    claim_plain(conn, queue, None)


def plain_due_and_running(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    first = queue.enqueue(conn, "plain", {"n": 1}).id
    queue.enqueue(conn, "plain", {"n": 2})
    return store.claim(conn, queue.tables, candidate_ids=[first], lock_token=new_id(), locked_by="worker", lease=60)[0]


def due_and_running(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    job = running(conn, queue)
    queue.enqueue(conn, "plain", {"n": 3})
    return job


def nothing(conn: sa.Connection, queue: Queue) -> None:
    """Nothing to begin with."""


def asleep(conn: sa.Connection, queue: Queue, duration: float = 60) -> None:
    store.fall_asleep(conn, queue.tables, worker_id="worker", duration=duration)


WORKER = [
    Operation("probe", due, lambda c, q, _: store.probe_lanes(c, q.tables), reads=True),
    Operation("candidates", due, candidates, reads=True),
    Operation("claim_plain", due, claim_plain),
    Operation("claim_keyed", due, claim_keyed),
    Operation("claim_heads", due, claim_heads),
    Operation("find_free_lines", due, lambda c, q, _: store.find_free_lines(c, q.tables, names=["keyed"]), reads=True),
    Operation("claim_apart", due, claim_apart),
    Operation("read_payloads", due, lambda c, q, ids: store.read_payloads(c, q.tables, ids=ids), reads=True),
    Operation("renew_leases", running, lambda c, q, job: store.renew_leases(c, q.tables, jobs=[job], lease=LEASE)),
    Operation("find_held", running, lambda c, q, job: store.find_held(c, q.tables, jobs=[job]), reads=True),
    Operation("mark_timed_out", running, lambda c, q, job: store.mark_timed_out(c, q.tables, jobs=[job])),
    Operation("complete", running, lambda c, q, job: store.complete(c, q.tables, jobs=[job])),
    Operation("retry", running, retry),
    Operation("fail", running, fail),
    Operation("release", running, release),
    Operation("release_lingering", running, lambda c, q, job: release(c, q, job, linger=LEASE)),
    Operation("turn", plain_due_and_running, turn, alone=True),
    Operation(
        "complete_unlocked",
        plain_due_and_running,
        lambda c, q, job: store.complete_unlocked(c, q.tables, jobs=[job]),
        alone=True,
    ),
    Operation("complete_keyed", running, lambda c, q, job: store.complete_keyed(c, q.tables, jobs=[job]), alone=True),
    Operation("long_turn", due_and_running, long_turn),
    Operation("find_stale", stale, lambda c, q, _: store.find_stale(c, q.tables, limit=10), reads=True),
    Operation("recover_stale", stale, recover),
    Operation("recover_for_good", stale_for_good, recover),
    Operation("sweep_mutexes", swept, lambda c, q, _: store.sweep_mutexes(c, q.tables, limit=10)),
    Operation("sweep_waits", swept, sweep_lines),
    Operation("delete_expired", expired, lambda c, q, _: store.delete_expired(c, q.tables, limit=10)),
    Operation("fall_asleep", nothing, lambda c, q, _: asleep(c, q, LEASE)),
    Operation("awake", asleep, lambda c, q, _: store.awake(c, q.tables, worker_id="worker")),
]


def known_id(conn: sa.Connection, queue: Queue) -> str:
    return new_id()


def enqueue_known(conn: sa.Connection, queue: Queue, id_: str) -> None:
    queue.enqueue(conn, "keyed", {"n": 1}, id=id_)


def no_ids(conn: sa.Connection, queue: Queue) -> list[str]:
    """The caller's note of what the queue answered."""
    return []


def enqueue(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
    ids.append(queue.enqueue(conn, "keyed", {"n": 1}).id)


def enqueue_many(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
    jobs = [queue.new("plain", {"n": n}) for n in range(3)]
    ids += [enqueued.id for enqueued in queue.enqueue_many(conn, jobs)]


def unless_there(enqueue: Run) -> Run:
    """Without an id of one's own: look for what was answered; without an answer, nothing can have been committed."""

    def again(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
        if not ids or queue.get(conn, ids[0]) is None:
            enqueue(conn, queue, ids)

    return again


CALLER = [
    Operation("enqueue_known_id", known_id, enqueue_known, by_worker=False),
    Operation("enqueue", no_ids, enqueue, unless_there(enqueue), by_worker=False),
    Operation("enqueue_many", no_ids, enqueue_many, unless_there(enqueue_many), by_worker=False),
]
