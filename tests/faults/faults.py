"""The faults of a chaos run.

Each is a generator that begins with its injection, yields the seconds it lasts (or waits for), and ends it: whatever
happens, the end is in a `finally`. Two lanes run beside each other, so that faults of processes and
of the database mix.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sqlane_sa.values.ids import new_id
from tests.faults.link import CUT_AFTER, CUT_BEFORE, HALF_OPEN, SWALLOW_REPLIES
from tests.faults.proxy import Fault as Cut
from tests.faults.world import DATABASE, END_TIMEOUT, OPTIONS, ROLE, Process, World

Steps = Iterator[float]
Inject = Callable[[World, random.Random], Steps]

LEASE = float(OPTIONS["lease"])
LOST_WAKEUP_WAIT = 20.0
LOST_WAKEUP = "lost wake-up"


class Fault(NamedTuple):
    """`weight` is how often it comes among those of its lane."""

    kind: str
    weight: float
    inject: Inject


PROCESSES: list[Fault] = []
DATABASES: list[Fault] = []


def fault(lane: list[Fault], kind: str, weight: float = 1.0) -> Callable[[Inject], Inject]:
    def add(inject: Inject) -> Inject:
        lane.append(Fault(kind, weight, inject))
        return inject

    return add


def holder_of_a_job(world: World, chance: random.Random) -> Process:
    """A worker that is at work, unless the database cannot say."""
    try:
        names = world.column("SELECT locked_by FROM sqlane_jobs WHERE status = 'running' ORDER BY started_at, id")
    except DBAPIError:
        names = []
    holders = [one for one in world.workers.ready if one.name in names]
    return chance.choice(holders) if holders else world.workers.pick(chance)


@fault(PROCESSES, "kill -9 worker", 3)
def kill_worker(world: World, chance: random.Random) -> Steps:
    holder_of_a_job(world, chance).send(signal.SIGKILL)
    yield 0.0


@fault(PROCESSES, "kill -9 producer", 0.5)
def kill_producer(world: World, chance: random.Random) -> Steps:
    world.producers.pick(chance).send(signal.SIGKILL)
    yield 0.0


@fault(PROCESSES, "SIGSTOP past the lease", 3)
def pause_worker(world: World, chance: random.Random) -> Steps:
    """Sometimes past the linger of its keys too: then its handlers wake up beside those of the next."""
    yield from _paused(holder_of_a_job(world, chance), chance.uniform(1.1, 3.0) * LEASE)


@fault(PROCESSES, "SIGSTOP within the lease", 1)
def pause_worker_shortly(world: World, chance: random.Random) -> Steps:
    worker = world.workers.pick(chance)
    yield from _paused(worker, chance.uniform(0.1, 0.6) * LEASE)


def _paused(process: Process, seconds: float) -> Steps:
    process.send(signal.SIGSTOP)
    try:
        yield seconds
    finally:
        process.send(signal.SIGCONT)


@fault(PROCESSES, "SIGTERM worker", 3)
def end_worker(world: World, chance: random.Random) -> Steps:
    yield from _ended(world.workers.pick(chance), times=1)


@fault(PROCESSES, "SIGTERM worker twice", 1)
def hurry_worker(world: World, chance: random.Random) -> Steps:
    yield from _ended(world.workers.pick(chance), times=2)


def _ended(process: Process, times: int) -> Steps:
    for _ in range(times):
        process.send(signal.SIGTERM)
        yield 0.1
    deadline = time.monotonic() + END_TIMEOUT
    while process.running:
        if time.monotonic() > deadline:
            process.expected = False  # it counts as one that broke
            process.popen.kill()
        yield 0.1


@fault(DATABASES, "server crash", 1)
def crash_server(world: World, chance: random.Random) -> Steps:
    world.server.stop("immediate")
    try:
        yield chance.uniform(0.5, 6)
    finally:
        world.server.start()


@fault(DATABASES, "server stop", 0.5)
def stop_server(world: World, chance: random.Random) -> Steps:
    world.server.stop("fast")
    try:
        yield chance.uniform(0.5, 3)
    finally:
        world.server.start()


BACKENDS = "FROM pg_stat_activity WHERE usename = :role AND pid <> pg_backend_pid()"


@fault(DATABASES, "backends terminated", 2)
def terminate_backends(world: World, chance: random.Random) -> Steps:
    for _ in range(chance.randint(1, 12)):
        one = f"SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid {BACKENDS} ORDER BY random() LIMIT :n) AS s"
        world.execute(one, role=ROLE, n=chance.choice((1, 1, 3)))
        yield chance.uniform(0.05, 0.5)


@fault(DATABASES, "rows locked", 2)
def lock_rows(world: World, chance: random.Random) -> Steps:
    """By a session that stands still: pending and running ones, or held keys."""
    jobs = "sqlane_jobs WHERE status = "
    what = chance.choice((f"{jobs}'running'", f"{jobs}'pending'", "sqlane_mutexes"))
    with world.admin.connect() as conn, _transaction(conn):
        conn.exec_driver_sql(f"SELECT FROM {what} LIMIT {chance.randint(1, 20)} FOR UPDATE SKIP LOCKED")
        yield chance.uniform(1, 8)


@fault(DATABASES, "table locked", 1)
def lock_table(world: World, chance: random.Random) -> Steps:
    table = chance.choice(("sqlane_jobs", "sqlane_payloads", "sqlane_mutexes", "sqlane_waits", "sqlane_sleepers"))
    with world.admin.connect() as conn, _transaction(conn):
        conn.exec_driver_sql(f"LOCK TABLE {table} IN {chance.choice(('EXCLUSIVE', 'ACCESS EXCLUSIVE'))} MODE")
        yield chance.uniform(1, 6)


@fault(DATABASES, "snapshot held", 1)
def hold_snapshot(world: World, chance: random.Random) -> Steps:
    with world.admin.connect() as conn, _transaction(conn, "ISOLATION LEVEL REPEATABLE READ"):
        conn.exec_driver_sql("SELECT count(*) FROM sqlane_mutexes")
        yield chance.uniform(3, 15)


@contextmanager
def _transaction(conn: sa.Connection, mode: str = "") -> Iterator[None]:
    """In a connection of the autocommit kind."""
    conn.exec_driver_sql(f"BEGIN {mode}")
    try:
        yield
    finally:
        # With its connection: the server may have been told to stop meanwhile.
        conn.invalidate()


@fault(DATABASES, "read-only", 1)
def read_only(world: World, chance: random.Random) -> Steps:
    """As after a failover to a standby: new sessions cannot write."""
    world.execute(f"ALTER DATABASE {DATABASE} SET default_transaction_read_only = on")
    try:
        world.execute(f"SELECT count(pg_terminate_backend(pid)) {BACKENDS}", role=ROLE)
        yield chance.uniform(1, 5)
    finally:
        world.execute(f"ALTER DATABASE {DATABASE} RESET default_transaction_read_only")


@fault(DATABASES, "connection limit", 1)
def limit_connections(world: World, chance: random.Random) -> Steps:
    world.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT {chance.choice((0, 2, 5))}")
    try:
        world.execute(f"SELECT count(pg_terminate_backend(pid)) {BACKENDS}", role=ROLE)
        yield chance.uniform(1, 5)
    finally:
        world.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")


@fault(DATABASES, "connections cut", 1)
def cut_connections(world: World, chance: random.Random) -> Steps:
    world.proxy.cut(reset=chance.random() < 0.5)
    yield 0.0


@fault(DATABASES, "network gone", 1)
def unplug(world: World, chance: random.Random) -> Steps:
    world.proxy.stop()
    try:
        yield chance.uniform(0.5, 5)
    finally:
        world.proxy.start()


@fault(DATABASES, "black hole", 1)
def black_hole(world: World, chance: random.Random) -> Steps:
    """The sockets stay open and nothing comes through; then the peers are told."""
    world.proxy.black_hole()
    try:
        yield chance.uniform(1, 1.5 * LEASE)
    finally:
        world.proxy.heal()
        world.proxy.cut()


@fault(DATABASES, "cut at a message", 3)
def cut_at_a_message(world: World, chance: random.Random) -> Steps:
    """In the middle of what some connections do; the reply to a COMMIT is as likely as anything."""
    links = [link for link in world.proxy.links if not link.closed]
    chosen = chance.sample(links, min(len(links), chance.randint(1, 6)))
    for link in chosen:
        act = chance.choice((CUT_BEFORE, CUT_AFTER, SWALLOW_REPLIES, HALF_OPEN))
        link.arm(Cut(chance.choice(("client", "server")), chance.randint(1, 30), act))
    try:
        yield chance.uniform(1, 3)
    finally:
        for link in chosen:
            link.cut()


@fault(DATABASES, LOST_WAKEUP, 1)
def lose_wakeup(world: World, chance: random.Random) -> Steps:
    """A quiet time, and one job that comes without a notification, like one of a restored backup: polling finds it."""
    world.pause(LOST_WAKEUP)
    try:
        for _ in range(60):
            if not world.scalar(UNFINISHED):
                yield from find_untold(world)
                return
            yield 0.5
    finally:
        world.resume(LOST_WAKEUP)


UNFINISHED = "SELECT EXISTS (SELECT FROM sqlane_jobs WHERE status IN ('pending', 'running'))"


def find_untold(world: World) -> Steps:
    """Nothing is left to do, and one job comes of which nobody is told."""
    yield 1.0  # for the workers to have fallen asleep
    id_ = new_id()
    world.execute(UNTOLD, id=id_)
    deadline = time.monotonic() + LOST_WAKEUP_WAIT
    while world.scalar("SELECT status FROM sqlane_jobs WHERE id = :id", id=id_) == "pending":
        if time.monotonic() > deadline:
            return
        yield 0.1


UNTOLD = """
WITH job AS (INSERT INTO sqlane_jobs (id, job_name, failure_job, completed_retention_ms, failed_retention_ms)
             VALUES (:id, 'plain', 'react', NULL, NULL) RETURNING id),
    told AS (INSERT INTO produced SELECT id, 'ack' FROM job)
INSERT INTO sqlane_payloads (id, payload) SELECT id, '{}' FROM job RETURNING id"""
