"""The bugs of the chaos controls reach what a worker runs: one that changes nothing of it would prove nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Backoff, JobContext, Queue, Worker
from sqlane_sa.schema import Tables
from sqlane_sa.statement import Statement
from tests.faults.counts import LEFT
from tests.faults.seeded import BUGS, Options, seeded
from tests.model import bugs
from tests.model.bugs import Edit
from tests.support import wait_until

OPTIONS: Options = {"lease": 2.0, "sweep_interval": 0.1, "stall_delay": 0.0, "poll_interval": 0.1, "concurrency": 4}
STALE = """
UPDATE sqlane_jobs SET status = 'running', lock_token = 'gone', locked_by = 'gone', started_at = now(),
    locked_until = now() - interval '1 minute' WHERE id = :id"""
UNDONE = sa.text("SELECT count(*) FROM sqlane_jobs WHERE status <> 'completed'")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Statement]]:
    """The statements of the store that this process executes."""
    statements: set[Statement] = set()
    render = Statement.on

    def on(statement: Statement, tables: Tables) -> Any:
        statements.add(statement)
        return render(statement, tables)

    monkeypatch.setattr(Statement, "on", on)
    yield statements


def define(queue: Queue) -> None:
    @queue.job("plain", backoff=Backoff(0.01))
    def plain(payload: bool, ctx: JobContext) -> None:
        if payload and ctx.attempt == 1:
            raise ValueError("the first attempt fails")

    @queue.job("keyed", mutex_keys=lambda payload: ["k"])
    def keyed(payload: Any) -> None: ...

    @queue.job("effect", transactional=True)
    def effect(payload: Any, ctx: JobContext) -> None: ...


def work(engine: sa.Engine, queue: Queue, options: Options) -> Worker:
    """A worker ends jobs with keys and without, a transactional one, one that is retried, and a stale one."""
    with engine.begin() as conn:
        for _ in range(3):
            queue.enqueue(conn, "plain", False)
            queue.enqueue(conn, "keyed")
        queue.enqueue(conn, "plain", True)
        queue.enqueue(conn, "effect")
        stale = queue.enqueue(conn, "plain", False)
        conn.execute(sa.text(STALE), {"id": stale.id})
    worker = Worker(engine, queue, **options)
    with worker, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        wait_until(lambda: conn.scalar(UNDONE) == 0, 60, "the end of all jobs")
    return worker


@pytest.mark.parametrize("bug", [name for name, bug in BUGS.items() if bug.edits])
def test_a_worker_uses_what_the_bug_has_changed(
    bug: str, engine: sa.Engine, queue: Queue, used: set[Statement]
) -> None:
    define(queue)
    places = {edit.statement for edit in BUGS[bug].edits}
    right = {bugs.statement(place) for place in places}
    with seeded(bug, options := dict(OPTIONS)):
        wrong = {bugs.statement(place) for place in places}
        work(engine, queue, options)
    assert not used & right
    for duty in BUGS[bug].duties:
        on_duty = {statement for statement in used if duty in statement.sql}
        assert on_duty, f"no statement that the worker uses holds {duty!r} any more"
        assert on_duty <= wrong, [statement.sql for statement in on_duty - wrong]


def test_a_job_whose_notification_got_lost(engine: sa.Engine, queue: Queue) -> None:
    """A worker that polls runs it; for one that trusts LISTEN, the count of what is left undone finds it."""
    define(queue)
    with Worker(engine, queue, **OPTIONS):
        enqueue_silently(engine, queue)
        wait_until(lambda: left_undone(engine) == [], message="the end of the job")
    with seeded("polling_removed", options := dict(OPTIONS)), Worker(engine, queue, **options) as worker:
        wait_until(lambda: worker._parts, 60)
        assert worker._parts is not None
        loop: Any = worker._parts.loop
        wait_until(lambda: loop.asleep and next_look(loop) > 3600, 60, "a sleeping loop that will not look")
        id_ = enqueue_silently(engine, queue)
        turn, turns = loop.turn, []
        loop.turn = lambda: turns.append(turn()) or turns[-1]
        for n in range(1, 4):
            loop._jobs.wake.set()
            wait_until(lambda: len(turns) >= n)  # noqa: B023
        assert left_undone(engine) == [id_]
        assert next_look(loop) > 3600


def enqueue_silently(engine: sa.Engine, queue: Queue) -> str:
    """In a transaction that sees nobody asleep: what a notification that gets lost looks like."""
    with engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM sqlane_sleepers")
        return queue.enqueue(conn, "plain", False).id


def left_undone(engine: sa.Engine) -> list[str]:
    with engine.connect() as conn:
        return [row.id for row in conn.exec_driver_sql(LEFT.sql)]


def next_look(loop: Any) -> float:
    """Seconds until the loop looks for jobs, unless it is woken."""
    now = time.monotonic()
    at: float = min(loop._looks.next(now), loop._sleep.look_at, loop._hints.next_look(now))
    return at - now


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_changes_something(bug: str) -> None:
    with seeded(bug, options := dict(OPTIONS)):
        changed = {edit.statement for edit in BUGS[bug].edits if edit.old not in bugs.statement(edit.statement).sql}
        assert changed == {edit.statement for edit in BUGS[bug].edits}
        assert changed or options != OPTIONS


def test_a_text_that_is_not_there_any_more_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = type(BUGS["line_ignored"])((Edit("finish.COMPLETE", "no such text", ""),))
    monkeypatch.setitem(BUGS, "moved", moved)  # type: ignore[arg-type]
    with pytest.raises(LookupError, match="stands 0 times in finish"), seeded("moved", {}):
        pass
