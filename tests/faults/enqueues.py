"""What is cut of the application: enqueue, and what it may ask a queue, in a transaction of its own."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlane_sa import Queue
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import NewJob
from tests.faults.operations import Operation, Run
from tests.faults.subjects import due


def known_id(conn: sa.Connection, queue: Queue) -> str:
    return new_id()


def enqueue_known(conn: sa.Connection, queue: Queue, id_: str) -> None:
    queue.enqueue(conn, "keyed", {"n": 1}, id=id_)


def no_ids(conn: sa.Connection, queue: Queue) -> list[str]:
    """The caller's note of what the queue answered."""
    return []


def some_jobs(queue: Queue, name: str) -> list[NewJob]:
    return [queue.new(name, {"n": n}) for n in range(3)]


def enqueue(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
    ids.append(queue.enqueue(conn, "keyed", {"n": 1}).id)


def enqueue_many(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
    ids += [enqueued.id for enqueued in queue.enqueue_many(conn, some_jobs(queue, "plain"))]


def enqueue_copied(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
    """With keys, so that there are three COPYs."""
    ids += [enqueued.id for enqueued in queue.enqueue_many(conn, some_jobs(queue, "keyed"), copy=True)]


async def aenqueue(conn: AsyncConnection, queue: Queue, ids: list[str]) -> None:
    ids.append((await queue.aenqueue(conn, "keyed", {"n": 1})).id)


async def aenqueue_copied(conn: AsyncConnection, queue: Queue, ids: list[str]) -> None:
    ids += [enqueued.id for enqueued in await queue.aenqueue_many(conn, some_jobs(queue, "keyed"), copy=True)]


def unless_there(enqueue: Run) -> Run:
    """Without an id of one's own: look for what was answered; without an answer, nothing can have been committed."""

    def again(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
        if not ids or queue.get(conn, ids[0]) is None:
            enqueue(conn, queue, ids)

    return again


def unless_there_async(enqueue: Run) -> Run:
    async def again(conn: AsyncConnection, queue: Queue, ids: list[str]) -> None:
        if not ids or await conn.run_sync(queue.get, ids[0]) is None:
            await enqueue(conn, queue, ids)

    return again


def ask(conn: sa.Connection, queue: Queue, ids: list[str]) -> None:
    queue.get(conn, ids[0])
    queue.stats(conn)
    queue.health(conn)


CALLER = [
    Operation("enqueue_known_id", known_id, enqueue_known, by="caller"),
    Operation("enqueue", no_ids, enqueue, unless_there(enqueue), by="caller"),
    Operation("enqueue_many", no_ids, enqueue_many, unless_there(enqueue_many), by="caller"),
    Operation("enqueue_copied", no_ids, enqueue_copied, unless_there(enqueue_copied), by="caller"),
    Operation("aenqueue", no_ids, aenqueue, unless_there_async(aenqueue), by="async caller"),
    Operation("aenqueue_copied", no_ids, aenqueue_copied, unless_there_async(aenqueue_copied), by="async caller"),
    Operation("ask", due, ask, by="caller", reads=True),
]
