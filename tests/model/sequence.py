"""One sequence: its transaction, the model beside it, and the comparison of both after each step."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine

from sqlane_sa import store
from sqlane_sa.values.job import FailedJob, NewJob
from tests.model.observed import compare, observe
from tests.model.operations import TICK, Operation
from tests.model.reference import Builder, Model
from tests.model.rows import MS, TIMES, Lock, Soon

KEEP_MS = 2 * TICK * 1000
REACTION = {
    "id": None,
    "name": "b",
    "priority": 0,
    "mutex_keys": ("k", "m"),
    "run_at": None,
    "delay": 0,
    "max_stalls": 1,
    "failure_job": "b",
    "kept": (KEEP_MS, KEEP_MS),
}

_SHIFTED = {
    "jobs": TIMES,
    "mutexes": ("held_until", "created_at"),
    "waits": ("run_at",),
}
SHIFTS = [
    sa.text(f"UPDATE sqlane_{table} SET " + ", ".join(f"{c} = {c} - :ticks * interval '{TICK} s'" for c in columns))
    for table, columns in _SHIFTED.items()
]


class Sequence(RuleBasedStateMachine):
    engine: sa.Engine

    def __init__(self) -> None:
        super().__init__()
        self.conn = self.engine.connect()
        store.pin_plans(self.conn)
        self.failed = True
        self.model = observe(self.conn)
        assert not self.model.jobs, "the sequence starts with empty tables"
        self.start = datetime.fromtimestamp(self.model.now // MS / 1000, UTC)
        self.locks: list[Lock] = []
        self.left_over: set[tuple[str, str]] = set()
        self.made = 0

    def teardown(self) -> None:
        """Committed without its rows: after a rollback the driver would have to prepare all its statements again."""
        if self.failed:
            self.conn.rollback()
        else:
            self.conn.exec_driver_sql("; ".join(f"DELETE FROM sqlane_{table}" for table in ("payloads", *_SHIFTED)))
            self.conn.commit()
        self.conn.close()

    def step(self, operation: Operation) -> Any:
        """Run it, and compare its result, all tables and the invariants with what they should be."""
        note(str(operation))
        self.failed = True
        result = operation.run(self.conn)
        predicted = operation.predict(self.model, result)
        assert operation.agree(result, predicted), f"{operation}: returned {result!r}, not {predicted!r}"
        self.settle()
        return result

    def settle(self) -> None:
        seen = observe(self.conn)
        compare(self.model, seen)
        self.model = seen
        # A row that was deleted by hand leaves holds, places and its payload behind, until they are swept or used.
        assert seen.violations <= self.left_over, seen.violations - self.left_over
        self.left_over = seen.violations
        self.failed = False

    def number(self) -> int:
        self.made += 1
        return self.made

    def job(self, options: Mapping[str, Any], id: str | None = None) -> NewJob:
        run_at, kept = options["run_at"], options["kept"]
        return NewJob(
            id=id or options["id"],
            name=options["name"],
            payload=f'{{"n": {self.number()}}}',
            priority=options["priority"],
            run_at=None if run_at is None else self.start + timedelta(seconds=run_at * TICK),
            delay_ms=options["delay"] * TICK * 1000,
            mutex_keys=options["mutex_keys"],
            max_attempts=3,
            max_stalls=options["max_stalls"],
            failure_job=options["failure_job"],
            completed_retention_ms=kept[0],
            failed_retention_ms=kept[1],
        )

    def picked(self, indexes: list[int], bare: bool = True) -> list[Lock]:
        """Locks, the newest first; the stale ones are among them."""
        newest = self.locks[::-1]
        locks = dict.fromkeys(newest[i % len(newest)] for i in indexes) if newest else {}
        return [Lock(lock.id, lock.lock_token) if bare else lock for lock in locks]

    def job_ids(self) -> list[str]:
        return sorted(self.model.jobs, key=lambda id_: (self.model.jobs[id_].created_at, id_))

    def chosen_ids(self, indexes: list[int]) -> list[str]:
        ids = self.job_ids()
        return list(dict.fromkeys(ids[i % len(ids)] for i in indexes)) if ids else []

    def builder(self, kind: str) -> Builder | None:
        """What it makes is decided now: it is asked twice, by the store and by the model, and told the same."""
        new = self.job(REACTION, id=f"reaction-{self.number()}")
        told: list[FailedJob] = []

        def build(failed: FailedJob) -> NewJob | None:
            told.append(failed)
            assert told[0] == failed, "the builder was told something else than the model says"
            if kind == "raises":
                raise ValueError("no failure job")
            if kind == "is refused":
                return NewJob(**{**as_options(new), "priority": 2**15})
            if kind == "repeats an id":
                return NewJob(**{**as_options(new), "id": failed.id})
            return new if kind == "builds" else None

        build.__name__ = kind
        return None if kind == "none given" else build

    def pass_time(self, ticks: int) -> None:
        """Every time in the tables moves into the past."""
        note(f"{ticks} ticks pass")
        for shift in SHIFTS:
            self.conn.execute(shift, {"ticks": ticks})
        shift_model(self.model, ticks * TICK * 1000 * MS)
        self.settle()


def as_options(job: NewJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in NewJob.__slots__ if name != "is_checked"}


def shift_model(model: Model, by: int) -> None:
    for row in (*model.jobs.values(), *model.mutexes.values()):
        for name, value in vars(row).items():
            if name.endswith(("_at", "_until")) and value is not None:
                setattr(row, name, value - by)
    for place, run_at in model.waits.items():
        assert not isinstance(run_at, Soon)
        model.waits[place] = run_at - by
