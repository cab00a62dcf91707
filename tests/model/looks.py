"""The ways of reading, which change nothing, against the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.values.job import Job, NameStats
from tests.model.operations import TABLES, TICK, micro_of
from tests.model.reference import Model
from tests.model.rows import SECOND, JobRow, Lock

Look = Callable[[sa.Connection, Model, Sequence[Lock]], None]
MS_OF_TICK = TICK * 1000


def payloads(conn: sa.Connection, model: Model, locks: Sequence[Lock]) -> None:
    ids = [*model.jobs, "unknown"]
    expected = {id_: json.loads(text) for id_, text in model.payloads.items() if id_ in ids}
    assert store.read_payloads(conn, TABLES, ids=ids) == expected


def held(conn: sa.Connection, model: Model, locks: Sequence[Lock]) -> None:
    expected = sorted(lock.id for lock in locks if model.held(lock))
    assert sorted(store.find_held(conn, TABLES, jobs=locks)) == expected
    assert store.find_locked(conn, TABLES, jobs=locks) == set()


def probe(conn: sa.Connection, model: Model, locks: Sequence[Lock]) -> None:
    pending = [job for job in model.jobs.values() if job.status == "pending"]
    expected = {name: min(when(job, model) for job in pending if job.job_name == name) for name in names(pending)}
    found = store.probe(conn, TABLES)
    assert [name for name, _ in found] == sorted(expected)
    assert {name: near(delay_ms) for name, delay_ms in found} == expected


def next_times(conn: sa.Connection, model: Model, locks: Sequence[Lock]) -> None:
    lingers = [hold.held_until - model.now for hold in model.mutexes.values() if lasts(hold.held_until, model)]
    delayed = [job.run_at - model.now for job in model.jobs.values() if waits(job, model) and job.job_name in "ab"]
    for found, expected in (
        (store.next_linger_end(conn, TABLES), lingers),
        (store.next_keyed(conn, TABLES, names=["a", "b"]), lingers + delayed),
    ):
        assert (found is None) == (not expected)
        assert found is None or near(found) == round(min(expected) / SECOND / TICK)


def lasts(time: object, model: Model) -> bool:
    return isinstance(time, int) and time > model.now


def waits(job: JobRow, model: Model) -> bool:
    return job.status == "pending" and bool(job.keys) and lasts(job.run_at, model)


def stats(conn: sa.Connection, model: Model, locks: Sequence[Lock]) -> None:
    found = store.stats(conn, TABLES)
    kept = [job for job in model.jobs.values() if job.status != "completed"]
    assert {name: figures._replace(oldest_due_ms=None) for name, figures in found.items()} == {
        name: figures(name, [job for job in kept if job.job_name == name], model) for name in names(kept)
    }
    for name, row in found.items():
        due = [when(job, model) for job in kept if job.job_name == name and model.is_due(job)]
        assert (row.oldest_due_ms is None) == (not due)
        assert row.oldest_due_ms is None or near(row.oldest_due_ms) == -min(due)


def figures(name: str, jobs: Sequence[JobRow], model: Model) -> NameStats:
    count = {status: sum(job.status == status for job in jobs) for status in ("pending", "running", "failed")}
    due, stuck = sum(map(model.is_due, jobs)), sum(job.timed_out_at is not None for job in jobs)
    return NameStats(name, count["pending"], due, count["running"], stuck, count["failed"], None)


def some_jobs(conn: sa.Connection, model: Model, locks: Sequence[Lock]) -> None:
    assert store.get(conn, TABLES, id="unknown") is None
    for row in list(model.jobs.values())[:3]:
        job = store.get(conn, TABLES, id=row.id)
        assert job is not None
        assert seen(job, row) == {name: getattr(row, name) for name in seen(job, row)}
        payload = model.payloads.get(row.id)
        assert (job.payload, job.payload_error) == (payload and json.loads(payload), None)


def seen(job: Job, row: JobRow) -> dict[str, object]:
    facts = {name: getattr(job, name) for name in vars(row) if hasattr(job, name)}
    return {name: micro_of(value) if hasattr(value, "timestamp") else value for name, value in facts.items()}


def names(jobs: Sequence[JobRow]) -> list[str]:
    return sorted({job.job_name for job in jobs})


def when(job: JobRow, model: Model) -> int:
    """In whole ticks from now."""
    assert isinstance(job.run_at, int)
    return round((job.run_at - model.now) / SECOND / TICK)


def near(ms: int) -> int:
    return round(ms / MS_OF_TICK)


LOOKS: tuple[Look, ...] = (payloads, held, probe, next_times, stats, some_jobs)
