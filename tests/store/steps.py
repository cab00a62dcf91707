"""Short words for what the store's tests do over and over, on the tables of `Queue()`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import ClaimedJob, NewJob

TOKEN = "token-1"
LEASE = 60.0


def new(queue: Queue, name: str = "n", payload: Any = None, **options: Any) -> NewJob:
    """A job of a name that is defined on the way."""
    if name not in queue.definitions:
        queue.define(name)
    return queue.new(name, payload, **options)


def add(conn: sa.Connection, queue: Queue, name: str = "n", payload: Any = None, **options: Any) -> str:
    """Insert one job; its id."""
    return store.insert_jobs(conn, queue.tables, jobs=[new(queue, name, payload, **options)])[0].id


def add_many(conn: sa.Connection, queue: Queue, n: int, name: str = "n", **options: Any) -> list[str]:
    return [one.id for one in store.insert_jobs(conn, queue.tables, jobs=[new(queue, name, **options)] * n)]


def claim(
    conn: sa.Connection, queue: Queue, *ids: str, token: str = TOKEN, lease: float = LEASE, **options: Any
) -> list[ClaimedJob]:
    return store.claim(
        conn, queue.tables, candidate_ids=ids, lock_token=token, locked_by="worker-1", lease=lease, **options
    )


def running(
    conn: sa.Connection, queue: Queue, name: str = "n", payload: Any = None, token: str = TOKEN, **options: Any
) -> ClaimedJob:
    """Insert a job and claim it."""
    return claim(conn, queue, add(conn, queue, name, payload, **options), token=token)[0]


def candidates(conn: sa.Connection, queue: Queue, limit: int = 100, **options: Any) -> list[str]:
    """What can start now, of every defined name."""
    limits = options.pop("limits_by_name", dict.fromkeys(queue.definitions, limit))
    return store.find_candidates(conn, queue.tables, limits_by_name=limits, **options)


def rows(conn: sa.Connection, sql: str, **parameters: Any) -> list[Any]:
    """All rows; single columns as bare values."""
    found = conn.execute(sa.text(sql), parameters).all()
    return [row[0] if len(row) == 1 else tuple(row) for row in found]


def run(conn: sa.Connection, sql: str, **parameters: Any) -> None:
    conn.execute(sa.text(sql), parameters)


def job_row(conn: sa.Connection, id: str) -> dict[str, Any]:
    """The whole row, each time in seconds from now."""
    row = conn.execute(sa.text("SELECT * FROM sqlane_jobs WHERE id = :id"), {"id": id}).mappings().one()
    now = conn.execute(sa.text("SELECT statement_timestamp()")).scalar_one()
    times = ("run_at", "locked_until", "started_at", "timed_out_at", "finished_at", "expires_at", "updated_at")
    return {**row, **{name: row[name] and (row[name] - now).total_seconds() for name in times}}


def about(seconds: Any) -> Any:
    """For what `job_row` reads: a busy machine lets some time pass between a write and that."""
    return pytest.approx(seconds, abs=4)


def status(conn: sa.Connection, id: str) -> str | None:
    return conn.execute(sa.text("SELECT status FROM sqlane_jobs WHERE id = :id"), {"id": id}).scalar()


def holds(conn: sa.Connection) -> dict[str, tuple[str, bool]]:
    """Mutex key to its job and whether it lingers."""
    found = rows(conn, "SELECT mutex_key, job_id, held_until IS NOT NULL FROM sqlane_mutexes")
    return {key: (job_id, lingers) for key, job_id, lingers in found}


def lines(conn: sa.Connection) -> list[tuple[str, str]]:
    """(mutex key, job) of every place in a line, in order."""
    return rows(conn, "SELECT mutex_key, job_id FROM sqlane_waits ORDER BY mutex_key, run_at, job_id")


def age(conn: sa.Connection, id: str, seconds: float) -> None:
    """Move a pending job, and its places in the lines, into the past."""
    for table, column in (("jobs", "id"), ("waits", "job_id")):
        run(
            conn,
            f"UPDATE sqlane_{table} SET run_at = run_at - CAST(:seconds AS float) * interval '1 second'"
            f" WHERE {column} = :id",
            seconds=seconds,
            id=id,
        )


def end_lease(conn: sa.Connection, *ids: str) -> None:
    for id in ids:
        run(conn, "UPDATE sqlane_jobs SET locked_until = statement_timestamp() - interval '1 ms' WHERE id = :id", id=id)


def end_lingers(conn: sa.Connection) -> None:
    run(conn, "UPDATE sqlane_mutexes SET held_until = statement_timestamp() WHERE held_until IS NOT NULL")


@contextmanager
def statements(conn: sa.Connection) -> Iterator[list[str]]:
    """The SQL that is sent on the connection's engine within the block."""
    sent: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *more: Any) -> None:
        sent.append(statement)

    sa.event.listen(conn.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(conn.engine, "before_cursor_execute", note)


def plan(conn: sa.Connection, sql: str, parameters: dict[str, Any], analyze: bool = False) -> list[dict[str, Any]]:
    """Every node of the plan of a statement with text() binds."""
    import json

    how = "ANALYZE, BUFFERS, FORMAT JSON" if analyze else "FORMAT JSON"
    text = conn.execute(sa.text(f"EXPLAIN ({how}) {sql}"), parameters).scalar_one()
    return list(_nodes((json.loads(text) if isinstance(text, str) else text)[0]["Plan"]))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


def ids_of(jobs: Iterable[Any] | Sequence[Any]) -> list[str]:
    return [job.id for job in jobs]
