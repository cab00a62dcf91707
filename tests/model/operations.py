"""Each operation of the store twice: as it runs, and as the model predicts it, with results that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import DueJob, FailResult, ReleaseWrite, RetryWrite
from sqlane_sa.values.job import ClaimedJob, NewJob
from tests.model.reference import Builder, Model
from tests.model.rows import SECOND, JobRow, Lock

TABLES = Queue().tables
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = 900
"""Seconds. All times of a sequence are whole ticks apart, and it takes far less than one: nothing is only just due."""


@dataclass(frozen=True)
class Operation:
    """`run(conn)` and `predict(model, result of run)` return the same, or what `agree` finds the same."""

    name: str
    run: Callable[[sa.Connection], Any]
    predict: Callable[[Model, Any], Any]
    agree: Callable[[Any, Any], bool] = lambda actual, predicted: bool(actual == predicted)

    def __str__(self) -> str:
        return self.name


def insert(jobs: Sequence[NewJob]) -> Operation:
    def predict(model: Model, result: Any) -> Any:
        return model.insert(jobs, [job.id or made for job, (made, _) in zip(jobs, result, strict=True)])

    return Operation(
        f"insert {[(job.id, job.name, job.priority, job.mutex_keys) for job in jobs]}",
        lambda conn: [tuple(one) for one in store.insert_jobs(conn, TABLES, jobs=jobs)],
        predict,
    )


def copy(jobs: Sequence[NewJob]) -> Operation:
    return Operation(
        f"copy {[(job.name, job.priority, job.mutex_keys) for job in jobs]}",
        lambda conn: [(id_, True) for id_ in store.copy_jobs(conn, TABLES, jobs=jobs)],
        lambda model, result: model.insert(jobs, [made for made, _ in result]),
    )


def candidates(limits: Mapping[str, int], keyed_names: Collection[str] | None, window: int) -> Operation:
    return Operation(
        f"candidates {dict(limits)} {keyed_names} window {window}",
        lambda conn: store.find_candidates(conn, TABLES, limits_by_name=limits, keyed_names=keyed_names, window=window),
        lambda model, _: model.candidates(limits, keyed_names),
    )


def walk(limits: Mapping[str, int], after_key: str) -> Operation:
    """From some key on the best need not be found, but something is, and nothing that cannot start."""

    def agree(actual: list[str], predicted: dict[str, str]) -> bool:
        names = [predicted.get(id_) for id_ in actual]
        right = all(name is not None and names.count(name) <= limits[name] for name in names)
        return right and len(set(actual)) == len(actual) and bool(actual) == bool(predicted)

    return Operation(
        f"walk after {after_key!r}",
        lambda conn: store.find_keyed_candidates(conn, TABLES, limits_by_name=limits, after_key=after_key, window=1),
        lambda model, _: {job.id: job.job_name for job in model.startable(limits) if job.keys},
        agree,
    )


def claim(ids: Sequence[str], token: str, lease: float, take_all: bool = False) -> Operation:
    pick: Any = take_every_row if take_all else store.pick_free

    def run(conn: sa.Connection) -> Any:
        claimed = store.claim(
            conn, TABLES, candidate_ids=ids, lock_token=token, locked_by="w" + token, lease=lease, pick=pick
        )
        return [_claimed(job) for job in claimed]

    def predict(model: Model, _: Any) -> Any:
        return [_started(model, job) for job in model.claim(ids, token, "w" + token, lease, take_all)]

    return Operation(f"claim {list(ids)} as {token}{' taking all' if take_all else ''}", run, predict)


def take_every_row(rows: Sequence[DueJob], busy: Collection[str]) -> Sequence[DueJob]:
    return rows


def claim_plain(lanes: Sequence[tuple[str, int, int]], token: str, lease: float) -> Operation:
    def run(conn: sa.Connection) -> Any:
        claimed = store.claim_plain(conn, TABLES, lanes=lanes, lock_token=token, locked_by="w" + token, lease=lease)
        return [(*_claimed(job), job.payload_text) for job in claimed]

    def predict(model: Model, _: Any) -> Any:
        started = model.claim_plain(lanes, token, "w" + token, lease)
        return [(*_started(model, job), model.payloads[job.id]) for job in started]

    return Operation(f"claim plain {list(lanes)} as {token}", run, predict)


def claim_keyed(names: Sequence[str], n: int, token: str, lease: float) -> Operation:
    def run(conn: sa.Connection) -> Any:
        by: Any = {"lock_token": token, "locked_by": "w" + token, "lease": lease}
        claimed = store.claim_keyed(conn, TABLES, names=names, limit=n, **by).jobs
        return [(*_claimed(job), job.payload_text) for job in claimed]

    return Operation(
        f"claim {n} with keys as {token}",
        run,
        lambda model, _: _started_in_order(model, model.keyed_candidates(names, n), token, lease),
    )


def claim_heads(keys: Sequence[str], names: Sequence[str], n: int, token: str, lease: float) -> Operation:
    def run(conn: sa.Connection) -> Any:
        by: Any = {"lock_token": token, "locked_by": "w" + token, "lease": lease}
        claimed = store.claim_heads(conn, TABLES, keys=keys, names=names, limit=n, **by)
        return [(*_claimed(job), job.payload_text) for job in claimed]

    return Operation(
        f"claim {n} of the lines of {list(keys)} as {token}",
        run,
        lambda model, _: _started_in_order(model, model.keyed_candidates(names, n, keys), token, lease),
    )


def _started_in_order(model: Model, ids: Sequence[str], token: str, lease: float) -> Any:
    started = model.claim(ids, token, "w" + token, lease, False)
    started.sort(key=lambda job: (job.priority, job.run_at, job.id))
    return [(*_started(model, job), model.payloads[job.id]) for job in started]


def _claimed(job: ClaimedJob) -> tuple[Any, ...]:
    keys = job.mutex_keys and tuple(job.mutex_keys)
    times = [micro_of(moment) for moment in (job.enqueued_at, job.run_at)]
    waited = round(job.waited_ms / 1000 / TICK)
    return (*job[:6], keys, *job[7:9], *times, job.priority, waited)


def _started(model: Model, job: JobRow) -> tuple[Any, ...]:
    facts = (job.id, job.job_name, job.attempts, job.max_attempts, job.stalls, job.max_stalls, job.mutex_keys)
    assert isinstance(job.run_at, int)
    waited = round((model.now - job.run_at) / SECOND / TICK)
    return (*facts, job.failure_job, job.lock_token, job.created_at, job.run_at, job.priority, waited)


def micro_of(moment: Any) -> int:
    return int(moment.timestamp()) * SECOND + moment.microsecond


def moment_of(micro: int) -> datetime:
    return EPOCH + timedelta(microseconds=micro)


def renew(locks: Sequence[Lock], lease: float) -> Operation:
    return Operation(
        f"renew {_names(locks)}",
        lambda conn: sorted(store.renew_leases(conn, TABLES, jobs=locks, lease=lease)),
        lambda model, _: model.renew(locks, lease),
    )


def mark(locks: Sequence[Lock]) -> Operation:
    return Operation(
        f"mark {_names(locks)}",
        lambda conn: sorted(store.mark_timed_out(conn, TABLES, jobs=locks)),
        lambda model, _: model.mark(locks),
    )


def complete(locks: Sequence[Lock]) -> Operation:
    return Operation(
        f"complete {_names(locks)}",
        lambda conn: sorted(store.complete(conn, TABLES, jobs=locks)),
        lambda model, _: model.complete(locks),
    )


def complete_unlocked(locks: Sequence[Lock]) -> Operation:
    """Of jobs without keys."""
    return Operation(
        f"complete unlocked {_names(locks)}",
        lambda conn: sorted(store.complete_unlocked(conn, TABLES, jobs=locks)),
        lambda model, _: model.complete_unlocked(locks),
    )


def complete_free(locks: Sequence[Lock]) -> Operation:
    """Of jobs without keys, and then of those that it left out: as a worker does it."""

    def run(conn: sa.Connection) -> list[str]:
        changed = store.complete_free(conn, TABLES, jobs=locks)
        rest = [lock for lock in locks if lock.id not in changed]
        return sorted(changed + (store.complete_unlocked(conn, TABLES, jobs=rest) if rest else []))

    return Operation(f"complete free {_names(locks)}", run, lambda model, _: model.complete_unlocked(locks))


def complete_keyed(locks: Sequence[Lock]) -> Operation:
    """Of jobs that know their keys."""
    return Operation(
        f"complete keyed {_names(locks)}",
        lambda conn: sorted(store.complete_keyed(conn, TABLES, jobs=locks)),
        lambda model, _: model.complete_keyed(locks),
    )


Places = Mapping[tuple[str, int], tuple[int, str]]
"""Of lanes (name, priority), the place (run_at, id) after which a claim begins."""


def complete_and_claim(
    locks: Sequence[Lock],
    lanes: Sequence[tuple[str, int, int]],
    token: str,
    lease: float,
    after: Places = MappingProxyType({}),
) -> Operation:
    """Of jobs without keys; what started, and what was completed: the locks without what was skipped."""

    def run(conn: sa.Connection) -> Any:
        turn = run_turn(conn, locks, lanes, token, lease, after)
        return [(*_claimed(job), job.payload_text) for job in turn.claimed], completed_by(turn, locks)

    def predict(model: Model, _: Any) -> Any:
        completed, started = model.complete_and_claim(locks, lanes, after, token, "w" + token, lease)
        return [(*_started(model, job), model.payloads[job.id]) for job in started], completed

    return Operation(f"complete {_names(locks)} and claim {list(lanes)} after {dict(after)} as {token}", run, predict)


def run_turn(
    conn: sa.Connection,
    locks: Sequence[Lock],
    lanes: Sequence[tuple[str, int, int]],
    token: str,
    lease: float,
    after: Places = MappingProxyType({}),
) -> store.Turn:
    places = {lane: (moment_of(run_at), id_) for lane, (run_at, id_) in after.items()}
    by: Any = {"lock_token": token, "locked_by": "w" + token, "lease": lease}
    return store.complete_and_claim(conn, TABLES, jobs=locks, lanes=lanes, after=places, **by)


def completed_by(turn: store.Turn, locks: Sequence[Lock]) -> list[str]:
    """Each lock is skipped by itself: an id may be there under two tokens."""
    completed = [lock.id for lock in set(locks)]
    for id_ in turn.skipped:
        completed.remove(id_)
    return sorted(completed)


def retry(lock: Lock, delay: float, error: dict[str, Any] | None) -> Operation:
    return Operation(
        f"retry {_names([lock])} in {delay:g} s",
        lambda conn: store.retry(conn, TABLES, job=lock, delay=delay, error=error),
        lambda model, _: model.retry(lock, delay, error),
    )


def retry_many(locks: Sequence[Lock], delay: float) -> Operation:
    writes = [RetryWrite(lock.id, lock.lock_token, delay, None) for lock in locks]
    return Operation(
        f"retry many {_names(locks)}",
        lambda conn: sorted(store.retry_many(conn, TABLES, retries=writes)),
        lambda model, _: sorted(lock.id for lock in locks if model.retry(lock, delay, None)),
    )


def release(lock: Lock, delay: float | None, linger: float | None) -> Operation:
    return Operation(
        f"release {_names([lock])} in {delay} s, lingering {linger} s",
        lambda conn: store.release(conn, TABLES, job=lock, delay=delay, linger=linger),
        lambda model, _: model.release(lock, delay, linger),
    )


def release_many(releases: Sequence[tuple[Lock, float | None, float | None]]) -> Operation:
    writes = [ReleaseWrite(lock.id, lock.lock_token, delay, linger) for lock, delay, linger in releases]
    return Operation(
        f"release many {[(*_names([lock]), delay, linger) for lock, delay, linger in releases]}",
        lambda conn: sorted(store.release_many(conn, TABLES, releases=writes)),
        lambda model, _: sorted(write[0].id for write in releases if model.release(*write)),
    )


def fail(lock: Lock, error: dict[str, Any], build: Builder | None) -> Operation:
    return Operation(
        f"fail {_names([lock])}, {getattr(build, '__name__', 'no')} failure job",
        lambda conn: _failed(store.fail(conn, TABLES, job=lock, error=error, build_failure_job=build)),
        lambda model, _: _failed(model.fail(lock, error, build)),
    )


def recover(id: str, lease: float, stall_delay: float, build: Builder | None) -> Operation:
    def run(conn: sa.Connection) -> Any:
        return store.recover_stale(conn, TABLES, id=id, lease=lease, stall_delay=stall_delay, build_failure_job=build)

    return Operation(
        f"recover {id}, {getattr(build, '__name__', 'no')} failure job",
        lambda conn: _recovered(run(conn)),
        lambda model, _: _recovered(model.recover(id, lease, stall_delay, build)),
    )


def _failed(result: FailResult | None) -> Any:
    """The text of a refusal is the database's."""
    return result and (result.changed, result.failure_job_id, result.failure_job_error is not None)


def _recovered(result: Any) -> Any:
    return (*result[:4], _failed(result.failure), *result[5:])


def find_stale(limit: int) -> Operation:
    return Operation(
        f"find stale {limit}",
        lambda conn: store.find_stale(conn, TABLES, limit=limit),
        lambda model, _: model.stale(limit),
    )


def sweep_mutexes(limit: int) -> Operation:
    return Operation(
        f"sweep mutexes {limit}",
        lambda conn: tuple(store.sweep_mutexes(conn, TABLES, limit=limit)),
        lambda model, _: model.sweep_mutexes(limit),
    )


def sweep_waits() -> Operation:
    return Operation(
        "sweep waits",
        lambda conn: tuple(store.sweep_waits(conn, TABLES, limit=1000)),
        lambda model, _: (model.sweep_waits(), ""),
    )


def delete_expired(limit: int) -> Operation:
    return Operation(
        f"delete expired {limit}",
        lambda conn: store.delete_expired(conn, TABLES, limit=limit),
        lambda model, _: model.delete_expired(limit),
    )


def make_due(names: Collection[str]) -> Operation:
    return Operation(
        f"make due {sorted(names)}",
        lambda conn: store.make_due(conn, TABLES, names=names),
        lambda model, _: model.make_due(names),
    )


def retry_failed(ids: Collection[str]) -> Operation:
    return Operation(
        f"retry failed {sorted(ids)}",
        lambda conn: store.retry_failed(conn, TABLES, ids=list(ids)),
        lambda model, _: model.retry_failed(ids),
    )


def delete_by_hand(id: str) -> Operation:
    return Operation(
        f"delete {id} by hand",
        lambda conn: conn.execute(sa.text("DELETE FROM sqlane_jobs WHERE id = :id"), {"id": id}).rowcount,
        lambda model, _: (id in model.jobs, model.delete_by_hand(id))[0],
    )


def _names(locks: Sequence[Lock]) -> list[str]:
    return [f"{lock.id}/{lock.lock_token}" for lock in locks]
