"""The state machine: any sequence of operations of any number of workers, each compared with the model.

A sequence is one transaction, which leaves nothing behind. Workers are their lock tokens: all that were ever given out
are kept, and a step may write under any of them. Time passes by moving the times of all rows into the past.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from tests.model import operations as op
from tests.model.invariants import IN_LINE
from tests.model.looks import LOOKS
from tests.model.operations import TICK, Operation
from tests.model.rows import Lock
from tests.model.sequence import KEEP_MS, Sequence

STEPS = 30
MAX_LEASE = 2
"""In ticks."""

NAMES = ("a", "b", "c")
KEYS = ("k", "l", "m")
ERROR = {"type": "E", "message": "m", "traceback": ""}

index = st.integers(0, 5)
indexes = st.lists(index, min_size=1, max_size=3, unique=True)
ticks = st.integers(0, MAX_LEASE)
maybe_ticks = st.none() | ticks
names = st.sampled_from(NAMES)
builders = st.sampled_from(("none given", "builds", "declines", "raises", "is refused", "repeats an id"))
retentions = st.sampled_from((KEEP_MS, 0, None))


@st.composite
def new_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """The options of a job. Its id is one of a few, so that ids come again, or None; times are in ticks."""
    return {
        "id": draw(st.sampled_from((None, None, "id-0", "id-1", "id-2"))),
        "name": draw(names),
        "priority": draw(st.integers(-1, 1)),
        "mutex_keys": tuple(draw(st.lists(st.sampled_from(KEYS), max_size=3))) or None,
        "run_at": draw(st.none() | st.integers(-2, 2)),
        "delay": draw(st.sampled_from((0, 0, 0, 1))),
        "max_stalls": draw(st.integers(0, 2)),
        "failure_job": draw(st.sampled_from((None, "b"))),
        "kept": (draw(retentions), draw(retentions)),
    }


LATE = (
    "renew",
    "mark",
    "complete",
    "complete free",
    "complete unlocked",
    "complete keyed",
    "turn",
    "retry",
    "release",
    "linger",
    "fail",
)


def late_write(lock: Lock, kind: str) -> Operation:
    writes = {
        "renew": op.renew([lock], TICK),
        "mark": op.mark([lock]),
        "complete": op.complete([lock]),
        "complete unlocked": op.complete_unlocked([lock]),
        "complete free": op.complete_free([lock]),
        "complete keyed": op.complete_keyed([lock]),
        "turn": op.complete_and_claim([lock], [], "late", TICK),
        "retry": op.retry(lock, TICK, None),
        "release": op.release(lock, TICK, None),
        "linger": op.release(lock, TICK, TICK),
        "fail": op.fail(lock, ERROR, None),
    }
    return writes[kind]


class StoreMachine(Sequence):
    @initialize(batch=st.lists(new_jobs(), min_size=2, max_size=4), n=st.integers(0, 3))
    def fill(self, batch: list[Mapping[str, Any]], n: int) -> None:
        self.step(op.insert([self.job(options) for options in batch]))
        self.take_a_turn(n, 500, MAX_LEASE)

    @rule(batch=st.lists(new_jobs(), min_size=1, max_size=3))
    def insert(self, batch: list[Mapping[str, Any]]) -> None:
        self.step(op.insert([self.job(options) for options in batch]))

    @rule(batch=st.lists(new_jobs(), min_size=1, max_size=3))
    def copy(self, batch: list[Mapping[str, Any]]) -> None:
        """COPY is for jobs without a given id."""
        self.step(op.copy([self.job({**options, "id": None}) for options in batch]))

    @rule(n=st.integers(1, 3), window=st.sampled_from((1, 2, 500)), narrow=st.booleans())
    def look_for_candidates(self, n: int, window: int, narrow: bool) -> None:
        self.step(op.candidates(dict.fromkeys(NAMES, n), NAMES[:2] if narrow else None, window))

    @rule(n=st.integers(1, 2), after_key=st.sampled_from(("", *KEYS)))
    def walk(self, n: int, after_key: str) -> None:
        self.step(op.walk(dict.fromkeys(NAMES, n), after_key))

    @rule(n=st.integers(1, 3), window=st.sampled_from((1, 500)), lease=ticks)
    def take_a_turn(self, n: int, window: int, lease: int) -> None:
        """As a worker does: look, and claim what was found."""
        found = self.step(op.candidates(dict.fromkeys(NAMES, n), None, window))
        self.started(op.claim(found, f"{IN_LINE}{self.number()}", lease * TICK))

    @rule(chosen=indexes, lease=ticks, take_all=st.booleans())
    def claim_any(self, chosen: list[int], lease: int, take_all: bool) -> None:
        """Whatever the rows are: the look was long ago."""
        self.started(op.claim(self.chosen_ids(chosen), f"any-{self.number()}", lease * TICK, take_all))

    @rule(n=st.integers(1, 3), narrow=st.booleans(), lease=ticks)
    def claim_keyed(self, n: int, narrow: bool, lease: int) -> None:
        """As a worker does, in one statement."""
        names = NAMES[:2] if narrow else NAMES
        self.started(op.claim_keyed(names, n, f"{IN_LINE}{self.number()}", lease * TICK))

    @rule(n=st.integers(1, 3), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), lease=ticks)
    def claim_heads(self, n: int, keys: list[str], lease: int) -> None:
        self.started(op.claim_heads(keys, NAMES, n, f"{IN_LINE}{self.number()}", lease * TICK))

    @rule(n=st.integers(1, 2), priorities=st.lists(st.integers(-1, 1), min_size=1, unique=True), lease=ticks)
    def claim_plain(self, n: int, priorities: list[int], lease: int) -> None:
        lanes = [(name, priority, n) for name in NAMES for priority in priorities]
        self.started(op.claim_plain(lanes, f"any-{self.number()}", lease * TICK))

    @rule(
        chosen=indexes,
        n=st.integers(0, 2),
        priorities=st.lists(st.integers(-1, 1), max_size=2, unique=True),
        after=st.none() | index,
        lease=ticks,
    )
    def complete_and_claim(
        self, chosen: list[int], n: int, priorities: list[int], after: int | None, lease: int
    ) -> None:
        """As a worker does again and again; sometimes from the place of some job on."""
        lanes = [(name, priority, n) for name in NAMES for priority in priorities]
        locks, places = self.picked_without_keys(chosen), self.places([] if after is None else [after])
        self.start_all(op.complete_and_claim(locks, lanes, f"any-{self.number()}", lease * TICK, places))

    def places(self, chosen: list[int]) -> dict[tuple[str, int], tuple[int, str]]:
        jobs = [self.model.jobs[id_] for id_ in self.chosen_ids(chosen)]
        return {(job.job_name, job.priority): (job.run_at, job.id) for job in jobs if isinstance(job.run_at, int)}

    def picked_without_keys(self, chosen: list[int]) -> list[Lock]:
        return [lock for lock in self.picked(chosen, bare=False) if not lock.mutex_keys]

    def start_all(self, operation: Operation) -> None:
        started, _ = self.step(operation)
        self.locks += [Lock(row[0], row[8], row[6]) for row in started]

    def started(self, operation: Operation) -> None:
        self.locks += [Lock(row[0], row[8], row[6]) for row in self.step(operation)]

    @rule(chosen=indexes, lease=ticks)
    def renew(self, chosen: list[int], lease: int) -> None:
        self.step(op.renew(self.picked(chosen), lease * TICK))

    @rule(chosen=indexes)
    def mark_timed_out(self, chosen: list[int]) -> None:
        self.step(op.mark(self.picked(chosen)))

    @rule(chosen=indexes, bare=st.booleans())
    def complete(self, chosen: list[int], bare: bool) -> None:
        self.step(op.complete(self.picked(chosen, bare)))

    @rule(chosen=indexes)
    def complete_keyed(self, chosen: list[int]) -> None:
        self.step(op.complete_keyed(self.picked(chosen, bare=False)))

    @rule(chosen=indexes)
    def complete_unlocked(self, chosen: list[int]) -> None:
        self.step(op.complete_unlocked(self.picked_without_keys(chosen)))

    @rule(chosen=indexes)
    def complete_free(self, chosen: list[int]) -> None:
        self.step(op.complete_free(self.picked_without_keys(chosen)))

    @rule(chosen=index, delay=ticks, error=st.sampled_from((None, ERROR)), bare=st.booleans())
    def retry(self, chosen: int, delay: int, error: dict[str, Any] | None, bare: bool) -> None:
        for lock in self.picked([chosen], bare):
            self.step(op.retry(lock, delay * TICK, error))

    @rule(chosen=indexes, delay=ticks)
    def retry_many(self, chosen: list[int], delay: int) -> None:
        self.step(op.retry_many(self.picked(chosen), delay * TICK))

    @rule(chosen=index, delay=maybe_ticks, linger=maybe_ticks, bare=st.booleans())
    def release(self, chosen: int, delay: int | None, linger: int | None, bare: bool) -> None:
        for lock in self.picked([chosen], bare):
            self.step(op.release(lock, seconds(delay), seconds(linger)))

    @rule(chosen=indexes, delays=st.lists(maybe_ticks, min_size=3), lingers=st.lists(maybe_ticks, min_size=3))
    def release_many(self, chosen: list[int], delays: list[int | None], lingers: list[int | None]) -> None:
        locks = self.picked(chosen)
        times = zip(locks, map(seconds, delays), map(seconds, lingers), strict=False)
        self.step(op.release_many(list(times)))

    @rule(chosen=index, kind=builders)
    def fail(self, chosen: int, kind: str) -> None:
        for lock in self.picked([chosen]):
            self.step(op.fail(lock, ERROR, self.builder(kind)))

    @rule(limit=st.integers(1, 5), lease=ticks, delay=ticks, kind=builders)
    def recover(self, limit: int, lease: int, delay: int, kind: str) -> None:
        for id_ in self.step(op.find_stale(limit)):
            self.step(op.recover(id_, lease * TICK, delay * TICK, self.builder(kind)))

    @rule(chosen=index, how=st.sampled_from(("released", "retried", "recovered")), late=st.sampled_from(LATE))
    def start_again(self, chosen: int, how: str, late: str) -> None:
        """A running job is lost and runs again under another token; then a write under the old one comes too late."""
        held = [lock for lock in self.locks[::-1] if self.model.held(lock)]
        for lock in held[chosen % len(held) :][:1] if held else []:
            if how == "released":
                self.step(op.release(lock, None, None))
            elif how == "retried":
                self.step(op.retry(lock, 0, ERROR))
            else:
                self.pass_time(MAX_LEASE + 1)
                self.step(op.recover(lock.id, 0, 0, None))
            self.started(op.claim([lock.id], f"again-{self.number()}", MAX_LEASE * TICK))
            self.step(late_write(Lock(lock.id, lock.lock_token), late))

    @rule(chosen=indexes, lease=ticks)
    def recover_any(self, chosen: list[int], lease: int) -> None:
        """Whether stale or not: another process may have looked before."""
        for id_ in self.chosen_ids(chosen):
            self.step(op.recover(id_, lease * TICK, TICK, None))

    @rule(limit=st.sampled_from((1, 100)))
    def sweep_mutexes(self, limit: int) -> None:
        self.step(op.sweep_mutexes(limit))

    @rule()
    def sweep_waits(self) -> None:
        self.step(op.sweep_waits())

    @rule(limit=st.sampled_from((1, 100)))
    def delete_expired(self, limit: int) -> None:
        self.step(op.delete_expired(limit))

    @rule(names=st.sets(names, min_size=1))
    def make_due(self, names: set[str]) -> None:
        self.step(op.make_due(names))

    @rule(chosen=indexes)
    def retry_failed(self, chosen: list[int]) -> None:
        """Whatever they are."""
        self.step(op.retry_failed(self.chosen_ids(chosen)))

    @rule()
    def retry_all_failed(self) -> None:
        self.step(op.retry_failed([id_ for id_, job in self.model.jobs.items() if job.status == "failed"]))

    @rule(chosen=index)
    def delete_by_hand(self, chosen: int) -> None:
        """A row whose id nobody uses again, unless it has no keys: its places would count for the next of that id."""
        for id_ in self.chosen_ids([chosen]):
            job = self.model.jobs[id_]
            if job.keys and id_.startswith("id-"):
                continue
            left = {("a key is held without its running job", key) for key in job.keys}
            left |= {("a place in a line without its pending job", f"{id_} {key}") for key in job.keys}
            self.left_over |= left | {("a payload without its job, or of a completed one", id_)}
            self.step(op.delete_by_hand(id_))

    @rule(n=st.integers(1, 2))
    def advance(self, n: int) -> None:
        self.pass_time(n)

    @rule()
    def inspect(self) -> None:
        """Every way of reading says what the model says."""
        for look in LOOKS:
            look(self.conn, self.model, self.locks)


def seconds(ticks: int | None) -> float | None:
    return None if ticks is None else float(ticks * TICK)


def run_sequences(
    engine: sa.Engine, n: int, *, random: int | None = None, steps: int = STEPS, shrink: bool = True
) -> None:
    """Run `n` sequences on a migrated database that is this run's alone; fail with the shortest that fails.

    The same ones each time, unless `random` is a seed.
    """
    machine = type("StoreMachine", (StoreMachine,), {"engine": engine})
    if random is not None:
        machine = seed(random)(machine)
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    chosen = settings(
        max_examples=n,
        stateful_step_count=steps,
        derandomize=random is None,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)
