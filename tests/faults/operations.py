"""What is cut of the worker: each operation of the store as it runs it, in a transaction like its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Retried
from sqlane_sa.worker import outcomes
from sqlane_sa.worker.execution import LeaseLostError
from sqlane_sa.worker.handler_engine import HandlerEngine
from sqlane_sa.worker.running import RunningJob
from sqlane_sa.worker.transactions import only_ours
from tests.faults.subjects import (
    KEYS,
    LEASE,
    asleep,
    due,
    due_and_running,
    expired,
    nothing,
    plain_due_and_running,
    running,
    stale,
    stale_for_good,
    swept,
)

ERROR = {"type": "ValueError", "message": "no"}

Prepare = Callable[[sa.Connection, Queue], Any]
Run = Callable[[Any, Queue, Any], Any]
"""Of a connection; what an `async def` is given is an AsyncConnection."""
By = Literal["worker", "handler", "caller", "async caller"]


@dataclass(frozen=True)
class Operation:
    """`prepare` makes a subject, `run` is what is cut, and `again` what its caller does about an unknown outcome.

    `by` says whose transaction it runs in: one of the worker's `Database`, one that the worker opens for a handler, or
    one of the caller's own.
    """

    name: str
    prepare: Prepare
    run: Run
    again: Run | None = None
    by: By = "worker"
    reads: bool = False
    """Whether it changes nothing."""
    alone: bool = False
    """One statement that is its own transaction."""

    def __str__(self) -> str:
        return self.name


def claim_plain(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    lanes = [("plain", 0, 5)]
    return store.claim_plain(conn, queue.tables, lanes=lanes, lock_token=new_id(), locked_by="worker", lease=LEASE)


def claim_keyed(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    by: Any = {"lock_token": new_id(), "locked_by": "worker", "lease": LEASE, "whole": True}
    return store.claim_keyed(conn, queue.tables, names=["keyed"], limit=5, **by).jobs


def claim_heads(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    by: Any = {"lock_token": new_id(), "locked_by": "worker", "lease": LEASE, "whole": True}
    return store.claim_heads(conn, queue.tables, keys=KEYS, names=["keyed"], limit=5, **by)


def find_places(conn: sa.Connection, queue: Queue, _: Any) -> list[str]:
    places = store.find_keyed_places(conn, queue.tables, limits_by_name={"keyed": 5})
    store.next_keyed(conn, queue.tables, names=["keyed"])
    return list(places)


def claim_apart(conn: sa.Connection, queue: Queue, _: Any) -> list[ClaimedJob]:
    """Around odd rows."""
    tables = queue.tables
    store.wait_briefly(conn)
    by: Any = {"lock_token": new_id(), "locked_by": "worker", "lease": LEASE}
    claimed = store.claim(conn, tables, candidate_ids=find_places(conn, queue, None), pick=store.pick_free, **by)
    store.read_payload_texts(conn, tables, [job.id for job in claimed])
    return claimed


def recall(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> list[ClaimedJob]:
    return store.recall(conn, queue.tables, lock_tokens=[job.lock_token], lease=LEASE)


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
    recoveries = store.recover_stale_many(
        conn,
        queue.tables,
        ids=[job.id],
        lease=LEASE,
        stall_delay=LEASE,
        build_failure_job=queue.build_failure_job,
    )
    store.wake(conn, queue.tables)
    return recoveries


class Lent:
    """A worker's database whose transaction is open already: the one that is cut."""

    def __init__(self, conn: sa.Connection) -> None:
        self._conn = conn

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        yield self._conn


def write_apart(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """What the worker does with results of a batch that failed: around the rows that somebody has locked."""
    result = RunningJob(job, queue.definitions[job.name], 0.0, LEASE), Retried(LEASE, ERROR)
    assert outcomes.write_apart(Lent(conn), queue, [result]) == []  # type: ignore[arg-type]


def write_instead(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """And with one that the database refuses: a plain failure takes its place."""
    running = RunningJob(job, queue.definitions[job.name], 0.0, LEASE)
    outcome, refused = Retried(LEASE, {**ERROR, "message": "n\xf3"}), ValueError("refused")
    database: Any = Lent(conn)
    assert outcomes._write_instead(database, queue, running, outcome, refused) == []


def complete_in_handler(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """A transactional handler that writes something, and what the worker adds to its transaction."""
    with only_ours(conn):
        queue.enqueue(conn, "plain", {"by": "handler"})
    complete_in_handler_alone(conn, queue, job)


def complete_in_handler_alone(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """The same of a handler that has written nothing: also the beginning is sent together with the rest."""
    assert isinstance(conn.engine, HandlerEngine)
    if not conn.engine.complete_and_commit(conn, queue.tables, job, LEASE):
        raise LeaseLostError


def complete_in_handler_apart(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """The same where the driver cannot send it together with the commit."""
    with only_ours(conn):
        queue.enqueue(conn, "plain", {"by": "handler"})
    if not store.complete(conn, queue.tables, jobs=[job], idle_limit=LEASE):
        raise LeaseLostError


def ask_ready(conn: sa.Connection, queue: Queue, _: Any) -> None:
    store.read_revision(conn, queue.tables)
    store.missing_rights(conn, queue.tables)


def sweep_lines(conn: sa.Connection, queue: Queue, _: Any) -> None:
    store.sweep_waits(conn, queue.tables, limit=100)
    store.sweep_sleepers(conn, queue.tables)


def turn(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> store.Turn:
    """What the loop does with jobs without keys."""
    lanes = [("plain", 0, 5)]
    return store.complete_and_claim(
        conn, queue.tables, jobs=[job], lanes=lanes, after={}, lock_token=new_id(), locked_by="worker", lease=LEASE
    )


def turn_again(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """A try that was rolled back leaves its mark on the row, which is passed over then, and goes with a statement that
    locks."""
    if turn(conn, queue, job).skipped:
        store.complete_unlocked(conn, queue.tables, jobs=[job])


def complete_free_again(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    if not store.complete_free(conn, queue.tables, jobs=[job]):
        store.complete_unlocked(conn, queue.tables, jobs=[job])


def long_turn(conn: sa.Connection, queue: Queue, job: ClaimedJob) -> None:
    """What the loop does with the others in one transaction: write, look and claim."""
    store.complete(conn, queue.tables, jobs=[job])
    store.probe_lanes(conn, queue.tables)
    claim_plain(conn, queue, None)


WORKER = [
    Operation("ask_ready", due, ask_ready, reads=True),
    Operation("probe", due, lambda c, q, _: store.probe_lanes(c, q.tables), reads=True),
    Operation("candidates", due, candidates, reads=True),
    Operation("claim_plain", due, claim_plain),
    Operation("claim_keyed", due, claim_keyed, alone=True),
    Operation("claim_heads", due, claim_heads, alone=True),
    Operation("next_keyed", due, lambda c, q, _: store.next_keyed(c, q.tables, names=["keyed"]), reads=True),
    Operation("find_free_lines", due, lambda c, q, _: store.find_free_lines(c, q.tables, names=["keyed"]), reads=True),
    Operation("find_keyed_places", due, find_places, reads=True),
    Operation("claim_apart", due, claim_apart),
    Operation("recall", running, recall),
    Operation("read_payloads", due, lambda c, q, ids: store.read_payloads(c, q.tables, ids=ids), reads=True),
    Operation("renew_leases", running, lambda c, q, job: store.renew_leases(c, q.tables, jobs=[job], lease=LEASE)),
    Operation("find_held", running, lambda c, q, job: store.find_held(c, q.tables, jobs=[job]), reads=True),
    Operation("mark_timed_out", running, lambda c, q, job: store.mark_timed_out(c, q.tables, jobs=[job])),
    Operation("complete", running, lambda c, q, job: store.complete(c, q.tables, jobs=[job])),
    Operation("retry", running, retry),
    Operation("fail", running, fail),
    Operation("release", running, release),
    Operation("release_lingering", running, lambda c, q, job: release(c, q, job, linger=LEASE)),
    Operation("write_apart", running, write_apart),
    Operation("write_instead", running, write_instead),
    Operation("complete_in_handler", running, complete_in_handler, by="handler"),
    Operation("complete_in_handler_alone", running, complete_in_handler_alone, by="handler"),
    Operation("complete_in_handler_apart", running, complete_in_handler_apart, by="handler"),
    Operation("turn", plain_due_and_running, turn, turn_again, alone=True),
    Operation(
        "complete_unlocked",
        plain_due_and_running,
        lambda c, q, job: store.complete_unlocked(c, q.tables, jobs=[job]),
        alone=True,
    ),
    Operation(
        "complete_free",
        plain_due_and_running,
        lambda c, q, job: store.complete_free(c, q.tables, jobs=[job]),
        complete_free_again,
        alone=True,
    ),
    Operation("complete_keyed", running, lambda c, q, job: store.complete_keyed(c, q.tables, jobs=[job]), alone=True),
    Operation("long_turn", due_and_running, long_turn),
    Operation("find_stale", stale, lambda c, q, _: store.find_stale(c, q.tables, limit=10), reads=True),
    Operation("recover_stale", stale, recover),
    Operation("recover_for_good", stale_for_good, recover),
    Operation("sweep_mutexes", swept, lambda c, q, _: store.sweep_mutexes(c, q.tables, limit=10)),
    Operation("sweep_waits", swept, sweep_lines),
    Operation("first_expired", expired, lambda c, q, _: store.first_expired(c, q.tables), reads=True),
    Operation("delete_expired", expired, lambda c, q, _: store.delete_expired(c, q.tables, limit=10)),
    Operation("fall_asleep", nothing, lambda c, q, _: asleep(c, q, LEASE)),
    Operation("awake", asleep, lambda c, q, _: store.awake(c, q.tables, worker_id="worker")),
]
