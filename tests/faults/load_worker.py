"""What a worker process under load runs. Its handlers note each start and end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Backoff, Discard, JobContext, Queue, Worker
from tests.faults.ledger import MOVES, NOTE_MOVES

queue = Queue()
engine: sa.Engine

# No unique constraint on the effects: a second one has to be seen, not refused. And each move tells of its transaction,
# of those that it could see had ended, and of a moment after which every other one sees as much.
LEDGER = f"""
{MOVES}
ALTER TABLE moves ADD by_xid xid8 DEFAULT pg_current_xact_id(), ADD snapshot pg_snapshot DEFAULT pg_current_snapshot(),
    ADD seen_at timestamptz DEFAULT clock_timestamp();
{NOTE_MOVES.format(jobs="sqlane_jobs")}
CREATE TABLE runs (job_id text, lock_token text, mutex_key text, started_at timestamptz DEFAULT clock_timestamp(),
                   ended_at timestamptz, held bool, PRIMARY KEY (job_id, lock_token));
CREATE TABLE effects (job_id text)"""

START = sa.text("INSERT INTO runs (job_id, lock_token, mutex_key) VALUES (:id, :token, :key)")
END = sa.text("UPDATE runs SET ended_at = clock_timestamp() WHERE job_id = :id AND lock_token = :token")
# Whose lease has ended cannot be stopped, and may overlap the next one: it is not held any more.
END_KEYED = sa.text("""
UPDATE runs AS r SET ended_at = statement_timestamp(), held = EXISTS (
    SELECT FROM sqlane_jobs AS j WHERE j.id = r.job_id AND j.lock_token = r.lock_token AND j.status = 'running')
WHERE r.job_id = :id AND r.lock_token = :token""")

# The database is what fails here, and with it the notes of a handler and the renewals of its lease: that must not use
# up its attempts or its stalls.
PATIENT: dict[str, Any] = {"max_attempts": 1000, "max_stalls": 1000, "backoff": Backoff(0.2, factor=1)}


def replace_read_only(context: sa.engine.ExceptionContext) -> None:
    """A session that began while the server was read-only stays so; the application's pool is to let go of it."""
    if getattr(context.original_exception, "sqlstate", None) == "25006":
        context.is_disconnect = True


@contextmanager
def noted(payload: Any, ctx: JobContext) -> Iterator[None]:
    run, key = {"id": ctx.id, "token": ctx.lock_token}, payload.get("key")
    with engine.begin() as conn:
        conn.execute(START, run | {"key": key})
    ctx.cancelled.wait(payload.get("seconds", 0))
    yield
    with engine.begin() as conn:
        conn.execute(END if key is None else END_KEYED, run)


@queue.job("plain", **PATIENT)
def plain(payload: Any, ctx: JobContext) -> None:
    with noted(payload, ctx):
        pass


@queue.job("keyed", mutex_keys=lambda payload: [payload["key"]], **PATIENT)
def keyed(payload: Any, ctx: JobContext) -> None:
    with noted(payload, ctx):
        pass


@queue.job("discard", failure_job="react", **PATIENT)
def discard(payload: Any, ctx: JobContext) -> None:
    with noted(payload, ctx):
        raise Discard("as it should")


@queue.job("react", **PATIENT)
def react(payload: Any, ctx: JobContext) -> None:
    with noted({}, ctx):
        pass


@queue.job("effect", transactional=True, **PATIENT)
def effect(payload: Any, ctx: JobContext) -> None:
    with noted(payload, ctx):
        ctx.connection.execute(sa.text("INSERT INTO effects (job_id) VALUES (:id)"), {"id": ctx.id})


def serve(url: str, options: dict[str, Any]) -> None:
    global engine
    logging.basicConfig(level=logging.INFO)
    # Whose writes are whose: the ledger compares it with the holder's name.
    connect = {"application_name": options["worker_id"], "connect_timeout": 3} | options.get("connect_args", {})
    engine = sa.create_engine(
        url,
        pool_size=options.get("concurrency", 10),
        pool_pre_ping=True,
        connect_args=connect,
    )
    sa.event.listen(engine, "handle_error", replace_read_only)
    Worker(engine, queue, **{name: value for name, value in options.items() if name != "connect_args"}).run()
