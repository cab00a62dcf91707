"""What a job costs, in counts that no machine changes: a guard against a statement, a scan or a write too many.

No time is looked at: `python -m tests.benchmarks` measures those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from sqlane_sa import JobHandle, Queue, Worker, store
from sqlane_sa.store.insert_one import INSERT_ONE
from sqlane_sa.store.turn import COMPLETE_AND_CLAIM
from sqlane_sa.worker.loop import Loop
from tests.benchmarks.explain import Plan, explained
from tests.performance.usage import Used, used
from tests.performance.wire import Sent, Wire
from tests.support import wait_until

JOBS = 2_000
TRANSACTIONAL_JOBS = 200
HISTORY = 20_000
BULK = 10_000
CLAIM = 20


class Bounds(NamedTuple):
    """The most in a drain, per job. How many turns there are (what SQLAlchemy takes for a transaction, also in
    autocommit) is a matter of luck, and has more room, as has what is sent in them."""

    statements: float
    round_trips: float
    turns: float
    wal_bytes: float
    buffers: float
    index_entries: float


DRAINS = {
    "def": Bounds(0.028, 0.07, 0.024, 1_200, 42, 8.5),
    "async": Bounds(0.028, 0.07, 0.024, 1_200, 42, 8.5),
    "keyed": Bounds(0.034, 0.09, 0.024, 1_850, 75, 18),
    "transactional": Bounds(5.2, 2.6, 1.5, 1_200, 48, 10),
}
# Beside a history, future jobs and better priorities, none of them analysed.
BESIDE = DRAINS["def"]

ENQUEUE_STATEMENTS = 1
ENQUEUE_ROUND_TRIPS = 2
BULK_ROWS_A_STATEMENT = 1_000
PICK_UP_STATEMENTS = 3
POLL_STATEMENTS = POLL_ROUND_TRIPS = 1.2
CLAIM_ROWS_A_JOB = 4
CLAIM_BUFFERS_A_JOB = 20
CLAIM_BUFFERS_OF_NOTHING = 26


def define(queue: Queue, kind: str) -> JobHandle[..., Any]:
    async def noop_async(n: int) -> None: ...

    def noop(n: int) -> None: ...

    handler: Any = noop_async if kind == "async" else noop
    keys: Any = (lambda n: [f"key:{n}"]) if kind == "keyed" else None
    return queue.job(kind, transactional=kind == "transactional", mutex_keys=keys)(handler)


def enqueue(engine: sa.Engine, queue: Queue, handle: JobHandle[..., Any], jobs: int) -> None:
    with engine.begin() as conn:
        queue.enqueue_many(conn, [handle.new(n) for n in range(jobs)])
    engine.dispose()


def drain(wire: Wire, counts: sa.Engine, queue: Queue, jobs: int) -> tuple[Bounds, Used]:
    """By one worker with its default options, from its start to its end."""
    before = used(counts)
    wire.clear()
    engine = sa.create_engine(wire.url)
    with turns_counted() as turns:
        Worker(engine, queue).run_until_idle()
    engine.dispose()
    cost = used(counts).since(before)
    return costs(wire.sent, len(turns), cost, jobs), cost


@contextmanager
def turns_counted() -> Iterator[list[object]]:
    """What is begun meanwhile, in all engines: the worker has one of its own."""
    begun: list[object] = []

    def note(conn: sa.Connection) -> None:
        begun.append(None)

    sa.event.listen(sa.Engine, "begin", note)
    try:
        yield begun
    finally:
        sa.event.remove(sa.Engine, "begin", note)


def costs(sent: Sent, turns: int, cost: Used, jobs: int) -> Bounds:
    return Bounds(
        sent.statements / jobs,
        sent.round_trips / jobs,
        turns / jobs,
        cost.wal / jobs,
        cost.buffers / jobs,
        cost.rows / jobs,
    )


def check(counts: sa.Engine, found: list[Bounds], bounds: Bounds) -> None:
    """The least of a few: what else the server does in between is not ours."""
    with counts.connect() as conn:
        whole_pages = conn.exec_driver_sql("SHOW full_page_writes").scalar_one() == "on"
    for name, *values in zip(Bounds._fields, *found, strict=True):
        if not (whole_pages and name == "wal_bytes"):
            assert min(values) <= getattr(bounds, name), f"{name}: {values}"


@pytest.mark.parametrize("kind", DRAINS)
def test_a_drain(engine: sa.Engine, counts: sa.Engine, queue: Queue, wire: Wire, kind: str) -> None:
    handle = define(queue, kind)
    jobs = TRANSACTIONAL_JOBS if kind == "transactional" else JOBS
    found = []
    for _ in range(2):
        enqueue(engine, queue, handle, jobs)
        per_job, cost = drain(wire, counts, queue, jobs)
        found.append(per_job)
        assert cost.unindexed == 0
    check(counts, found, DRAINS[kind])


ROWS = """
INSERT INTO sqlane_jobs (id, job_name, status, priority, run_at, finished_at, expires_at)
SELECT '{kind}' || lpad(CAST(n AS text), 25, '0'), 'def', '{status}', {priority}, now() + interval '{due}',
       now() - interval '1 hour', now() + interval '1 day' FROM generate_series(1, {count}) AS n"""


def add_rows(engine: sa.Engine, count: int = HISTORY) -> None:
    """What a claim must not read: completed jobs, jobs of the future, and of better priority there."""
    with engine.begin() as conn:
        for values in (("a", "completed", 0, "-1 hour"), ("b", "pending", 0, "1 day"), ("c", "pending", -5, "1 day")):
            kind, status, priority, due = values
            conn.exec_driver_sql(ROWS.format(kind=kind, status=status, priority=priority, due=due, count=count))
    engine.dispose()


def test_a_drain_beside_many_rows_never_analysed(
    engine: sa.Engine, counts: sa.Engine, queue: Queue, wire: Wire
) -> None:
    handle = define(queue, "def")
    add_rows(engine)
    found = []
    for _ in range(2):
        enqueue(engine, queue, handle, JOBS)
        per_job, cost = drain(wire, counts, queue, JOBS)
        found.append(per_job)
        assert cost.unindexed == 0
    check(counts, found, BESIDE)


def claim_of(url: str, queue: Queue, lanes: list[tuple[str, int, int]]) -> tuple[int, list[Plan]]:
    with explained(url) as (engine, plans), engine.connect() as conn:
        store.pin_plans(conn)
        conn.exec_driver_sql("SELECT")  # the server tells of a statement with parameters when the next one begins
        plans.clear()
        claimed = store.claim_plain(conn, queue.tables, lanes=lanes, lock_token="t", locked_by="w", lease=60)
        conn.rollback()
    return len(claimed), plans


@pytest.mark.parametrize("beside", [0, HISTORY])
def test_a_claim_reads_what_it_takes(
    database_url: str, engine: sa.Engine, counts: sa.Engine, queue: Queue, beside: int
) -> None:
    handle = define(queue, "def")
    add_rows(engine, beside)
    enqueue(engine, queue, handle, JOBS)
    claimed, (plan,) = claim_of(database_url, queue, [("def", -5, CLAIM), ("def", 0, CLAIM)])
    assert claimed == CLAIM
    assert not plan.whole_tables
    assert plan.rows <= CLAIM_ROWS_A_JOB * CLAIM
    assert plan.buffers <= CLAIM_BUFFERS_A_JOB * CLAIM
    claimed, (plan,) = claim_of(database_url, queue, [("def", -5, CLAIM), ("other", 0, CLAIM)])
    assert (claimed, plan.rows) == (0, 0)
    assert plan.buffers <= CLAIM_BUFFERS_OF_NOTHING


def test_an_enqueue_is_one_statement(queue: Queue, wire: Wire) -> None:
    handle = define(queue, "keyed")
    engine = sa.create_engine(wire.url)
    for _ in range(10):  # prepared by then
        with engine.begin() as conn:
            wire.clear()
            handle.enqueue(conn, 1)
    sent = wire.sent
    assert (sent.statements, sent.transactions) == (ENQUEUE_STATEMENTS, 1)
    assert sent.round_trips <= ENQUEUE_ROUND_TRIPS
    wire.clear()
    with engine.begin() as conn:
        queue.enqueue_many(conn, [handle.new(n) for n in range(BULK)])
    assert wire.sent.statements <= BULK / BULK_ROWS_A_STATEMENT
    engine.dispose()


def test_a_sleeping_worker_sends_nothing(queue: Queue, wire: Wire, counts: sa.Engine) -> None:
    define(queue, "def")
    engine = sa.create_engine(wire.url)
    worker = Worker(engine, queue, poll_interval=3600, sweep_interval=3600, lease=3600)
    with worker:
        wait_until(lambda: asleep(counts))
        quiet_for(wire, looks=100)
    engine.dispose()


def test_a_pick_up_is_three_statements(engine: sa.Engine, queue: Queue, wire: Wire, counts: sa.Engine) -> None:
    """The claim, the completion, and one probe for all that may have come beside it or from the handler. At best: a
    handler that gets no processor for a while ends after the probe, and calls for another."""
    handle = define(queue, "def")
    own = sa.create_engine(wire.url)
    statements = []
    with Worker(own, queue, poll_interval=3600, sweep_interval=3600, lease=3600) as worker:
        loop = worker._parts.loop  # type: ignore[union-attr]
        wait_until(lambda: asleep(counts))
        for n in range(20):
            wait_until(loop.idle.is_set)
            loop.idle.clear()
            before = wire.sent.statements
            with engine.begin() as conn:
                handle.enqueue(conn, n)
            wait_until(loop.idle.is_set)
            statements.append(wire.sent.statements - before)
    own.dispose()
    assert min(statements) <= PICK_UP_STATEMENTS


def test_what_each_turn_sends_is_in_the_drivers_cache(queue: Queue, engine: sa.Engine) -> None:
    """psycopg keeps the parameters' places of statements up to a length, and looks for them at each call in others."""
    for statement in (COMPLETE_AND_CLAIM, INSERT_ONE):
        assert len(str(statement.on(queue.tables).compile(engine))) <= MAX_CACHED_STATEMENT_LENGTH


def asleep(counts: sa.Engine) -> bool:
    with counts.connect() as conn:
        return bool(conn.exec_driver_sql("SELECT count(*) FROM sqlane_sleepers").scalar_one())


def quiet_for(wire: Wire, looks: int) -> None:
    """Wait for so many looks (5 ms apart) in a row that see nothing new."""
    seen = [wire.sent]

    def same() -> bool:
        now = wire.sent
        if now != seen[-1]:
            seen.clear()
        seen.append(now)
        return len(seen) > looks

    wait_until(same, message="a worker that sends nothing")


def test_a_poll_is_one_statement(queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[bool] = []
    turn = Loop.turn

    def counted(loop: Loop) -> bool:
        did = turn(loop)
        polls.append(did)
        return did

    monkeypatch.setattr(Loop, "turn", counted)
    define(queue, "def")
    engine = sa.create_engine(wire.url)
    with Worker(engine, queue, poll_interval=0.02, sweep_interval=3600, lease=3600, wakeups=False):
        wait_until(lambda: len(polls) > 20)
        before, polled = wire.sent, len(polls)
        wait_until(lambda: len(polls) > polled + 100)
        after, polled = wire.sent, len(polls) - polled
    engine.dispose()
    assert after.statements - before.statements <= POLL_STATEMENTS * polled
    assert after.round_trips - before.round_trips <= POLL_ROUND_TRIPS * polled


def test_the_bounds_would_notice(engine: sa.Engine, counts: sa.Engine, queue: Queue, wire: Wire) -> None:
    """Each statement with two others before it: statements and round trips are too many, whatever else there is."""
    handle = define(queue, "def")
    enqueue(engine, queue, handle, JOBS)
    with two_more():
        per_job, _ = drain(wire, counts, queue, JOBS)
    for name in ("statements", "round_trips"):
        alone = Bounds(*(getattr(per_job, field) if field == name else 0.0 for field in Bounds._fields))
        with pytest.raises(AssertionError, match=name):
            check(counts, [alone], DRAINS["def"])


@contextmanager
def two_more() -> Iterator[None]:
    def send(conn: sa.Connection, cursor: Any, *rest: object) -> None:
        cursor.execute("SELECT 1")
        cursor.execute("SELECT 1")

    # Of all engines: the worker has one of its own.
    sa.event.listen(sa.Engine, "before_cursor_execute", send)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", send)
