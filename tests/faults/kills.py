"""A worker that kills or pauses itself at a chosen step, and the counts that must hold wherever that was."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Backoff, Discard, JobContext, Queue, Snooze, Worker, store
from sqlane_sa.worker import handler_engine, running
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.running import RunningJobs
from tests.faults.fleet import Fleet
from tests.processes import app

queue = Queue()
OFTEN: Mapping[str, Any] = {"max_stalls": 1000, "backoff": Backoff(base=0.01, jitter=0.0)}
OPERATIONS = (
    "complete_and_claim",
    "complete_free",
    "complete_keyed",
    "claim_keyed",
    "claim_heads",
    "complete",
    "retry_many",
    "release_many",
    "fail",
    "renew_leases",
    "recover_stale_many",
)
MOMENTS = ("before", "written", "committed")
TRANSACTIONS = ("complete", "retry_many", "release_many", "fail", "renew_leases", "recover_stale_many")
"""Operations in whose transactions a worker can be paused, with rows locked."""
STEPS = (
    "handler start",
    "handler end",
    "complete_and_commit before",
    "complete_and_commit committed",
    *(f"{operation} {moment}" for operation in OPERATIONS for moment in MOMENTS),
)

LEDGER = """
CREATE FUNCTION released() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO ledger (job_id, event) VALUES (NEW.id, 'released'); RETURN NULL; END $$;
CREATE TRIGGER released AFTER UPDATE ON sqlane_jobs FOR EACH ROW
    WHEN (OLD.status = 'running' AND NEW.status = 'pending' AND NEW.attempts = OLD.attempts AND NEW.stalls = OLD.stalls)
    EXECUTE FUNCTION released()"""

HELD = sa.text("""
INSERT INTO ledger (job_id, lock_token, event) SELECT id, lock_token, 'held' FROM sqlane_jobs
WHERE id = :id AND lock_token = :token AND status = 'running'""")

OVERLAPS = """
WITH runs AS (
    SELECT k.mutex_key, s.job_id, s.lock_token, s.at AS started_at, e.at AS ended_at
    FROM ledger AS s JOIN ledger AS e ON e.lock_token = s.lock_token AND e.job_id = s.job_id AND e.event = 'held'
    JOIN sqlane_jobs AS j ON j.id = s.job_id CROSS JOIN unnest(j.mutex_keys) AS k(mutex_key) WHERE s.event = 'start'
)
SELECT a.mutex_key, a.job_id, b.job_id AS other_id FROM runs AS a JOIN runs AS b
ON a.mutex_key = b.mutex_key AND (a.started_at, a.job_id) < (b.started_at, b.job_id) AND b.started_at < a.ended_at"""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def pause() -> None:
    """Once: after it the process goes on as any other."""
    if _to_pause.acquire(blocking=False):
        os.kill(os.getpid(), signal.SIGSTOP)


_to_pause = threading.Lock()
die: Callable[[], None] = kill
"""What to do at the chosen step."""


@queue.job("quick", mutex_keys=lambda p: p.get("keys"), **OFTEN)
def quick(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")
    time.sleep(payload.get("seconds", 0.0))
    if payload.get("keys"):
        note_held(ctx)
    app.note(ctx, "end")


@queue.job("async", **OFTEN)
async def asynchronous(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")
    app.note(ctx, "end")


@queue.job("slow", **OFTEN)
def slow(payload: Any, ctx: JobContext) -> None:
    """Long enough for a renewal."""
    app.note(ctx, "start")
    time.sleep(payload.get("seconds", 0.6))
    app.note(ctx, "end")


@queue.job("retries", **OFTEN)
def retries(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")
    if ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    app.note(ctx, "end")


@queue.job("snoozes", **OFTEN)
def snoozes(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")
    if app.runs(ctx) == 1:
        raise Snooze(0.01)
    app.note(ctx, "end")


@queue.job("fails", failure_job="reaction", **OFTEN)
def fails(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")
    raise Discard("for good")


@queue.job("reaction", **OFTEN)
def reaction(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")


@queue.job("effect", transactional=True, **OFTEN)
def effect(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")
    ctx.connection.execute(sa.text("INSERT INTO ledger (job_id, event) VALUES (:id, 'effect')"), {"id": ctx.id})


@queue.job("contest", failure_job="reaction", **OFTEN)
def contest(payload: Any, ctx: JobContext) -> None:
    """The first run succeeds after a while; a later one fails for good at once."""
    earlier = app.runs(ctx)  # before the note, upon which the process may be paused, and the other one begins
    app.note(ctx, "start")
    if earlier:
        raise Discard("for good")
    time.sleep(payload["seconds"])
    app.note(ctx, "end")


def note_held(ctx: JobContext) -> None:
    """Of a run that has its lease to the end: another one may overlap those of its key that have not."""
    with app.engine.begin() as conn:
        conn.execute(HELD, {"id": ctx.id, "token": ctx.lock_token})


def serve(url: str, options: dict[str, Any]) -> None:
    """`kill_at`, `pause_at`: a step of `STEPS`; `kill_after`: the number of the handler after whose return to die."""
    global die
    logging.basicConfig(level=logging.WARNING)
    app.engine = sa.create_engine(url)
    step, number = options.pop("kill_at", None), options.pop("kill_after", None)
    if "pause_at" in options:
        step, die = options.pop("pause_at"), pause
    if step is not None:
        kill_at(*step.rsplit(" ", 1))
    if number is not None:
        kill_after(number)
    Worker(app.engine, queue, **options).run()


def kill_at(operation: str, moment: str) -> None:
    if operation == "handler":
        kill_in_handler(moment)
    elif operation == "complete_and_commit":
        kill_at_last_step(moment)
    else:
        kill_in_store(operation, moment)


def kill_in_handler(moment: str) -> None:
    note = app.note

    def note_and_die(ctx: JobContext, event: str) -> None:
        note(ctx, event)
        if event == moment:
            die()

    app.note = note_and_die


def kill_at_last_step(moment: str) -> None:
    call = handler_engine.complete_and_commit

    def call_and_die(*arguments: Any, **options: Any) -> bool:
        if moment == "before":
            die()
        completed = call(*arguments, **options)
        die()
        return completed

    handler_engine.complete_and_commit = call_and_die


def kill_in_store(operation: str, moment: str) -> None:
    """Die before the first call with something to do, after its statements, or after their commit."""
    call: Callable[..., Any] = getattr(store, operation)
    written = threading.Event()
    if operation == "complete_free":
        running.MANY = 1  # the writer's, which leaves less than that to the loop
    if operation == "complete":
        handler_engine.sends_together = lambda conn: False  # a transactional handler's, as behind a pooler

    def call_and_die(*arguments: Any, **options: Any) -> Any:
        if moment == "before" and any(options.get(name) for name in ("lanes", "names", "jobs", "job", "ids")):
            die()
        if moment == "before" and (options.get("retries") or options.get("releases")):
            die()
        result = call(*arguments, **options)
        # Whether anything was done: a claim may be a pair of empty lists.
        if any(result) if isinstance(result, tuple | list) else result:
            written.set()
            if moment == "written":
                die()
        return result

    setattr(store, operation, call_and_die)
    if moment == "committed":
        kill_after_commit(written)


def kill_after_commit(written: threading.Event) -> None:
    for name in ("transaction", "statement"):
        setattr(Database, name, _dying(getattr(Database, name), written))


def _dying(block: Callable[..., Any], written: threading.Event) -> Callable[..., Any]:
    @contextmanager
    def block_and_die(database: Database) -> Iterator[sa.Connection]:
        with block(database) as conn:
            yield conn
        if written.is_set():
            die()

    return block_and_die


def kill_after(number: int) -> None:
    finish, lock, ended = RunningJobs.finish, threading.Lock(), [0]

    def finish_and_die(jobs: RunningJobs, *arguments: Any) -> None:
        finish(jobs, *arguments)
        with lock:
            ended[0] += 1
            if ended[0] >= number:
                die()

    RunningJobs.finish = finish_and_die  # type: ignore[method-assign]


def count_releases(fleet: Fleet) -> None:
    with fleet.engine.begin() as conn:
        conn.exec_driver_sql(LEDGER)


def check_counts(fleet: Fleet, ids: list[str]) -> None:
    """What holds at every moment: nothing lost, one failure job for each failure, one effect for each completion, no
    two jobs of a key at a time."""
    found = {row.id for row in fleet.rows("SELECT id FROM sqlane_jobs")}
    assert set(ids) <= found, "lost"
    # One statement: what a process had under way when it was killed may still commit.
    counts = (
        "SELECT count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE job_name = 'reaction'),"
        " count(*) FILTER (WHERE status = 'completed' AND job_name = 'effect'),"
        " (SELECT count(*) FROM ledger WHERE event = 'effect'),"
        " (SELECT count(DISTINCT job_id) FROM ledger WHERE event = 'effect') FROM sqlane_jobs"
    )
    ((failed, reactions, completed, effects, distinct),) = fleet.rows(counts)
    assert failed == reactions
    assert completed == effects == distinct
    overlaps = fleet.rows(OVERLAPS)
    assert not overlaps, f"overlaps per key: {overlaps}"


def check_starts(fleet: Fleet) -> None:
    """At rest: each start is one of the job's attempts, stalls or releases."""
    unexplained = fleet.rows(
        "SELECT j.id, job_name, attempts, stalls, s.starts, s.releases FROM sqlane_jobs AS j JOIN (SELECT job_id,"
        " count(*) FILTER (WHERE event = 'start') AS starts, count(*) FILTER (WHERE event = 'released') AS releases"
        " FROM ledger GROUP BY job_id) AS s ON s.job_id = j.id WHERE starts > attempts + stalls + releases"
    )
    assert unexplained == []
