"""A producer of a chaos run: `python -m tests.faults.producers URL FOLDER NAME SEED RATE`, in jobs a second.

Threads that enqueue in every way there is. Each batch is written down before its COMMIT is sent, and again when the
outcome is known: "ack" (committed), "abort" (rolled back, or never sent), else unknown. It stops while FOLDER/pause
is there and ends when FOLDER/stop is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import NewJob
from tests.faults.workload import engine_as, queue
from tests.support import with_driver

# What an outage looks like to a producer; anything else is a fault of the queue's or ours, and ends the process.
OUTAGE = (SQLAlchemyError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
KEYS = 40
NAMES = {
    "plain": 66, "async": 8, "keyed": 8, "effect": 6, "account": 4, "parent": 2, "flaky": 2, "snooze": 2,
    "doomed": 1, "overdue": 0.2, "overdue_async": 0.2, "long": 0.7,
}  # fmt: skip


class Book:
    """What this producer knows of its batches, on disk: a line is there whatever ends the process after it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._lock = threading.Lock()
        self._batches = 0

    def intend(self, ids: list[str]) -> int:
        """Called when everything but COMMIT was sent; the number of the batch."""
        with self._lock:
            self._batches += 1
            self._write({"batch": self._batches, "ids": ids})
            return self._batches

    def outcome(self, batch: int, outcome: str) -> None:
        with self._lock:
            self._write({"batch": batch, "outcome": outcome})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class Pace:
    """So many jobs a second; what was missed in an outage is made up for."""

    def __init__(self, folder: Path, rate: float) -> None:
        self._pause, self._stop = folder / "pause", folder / "stop"
        self._rate = rate
        self._start = time.monotonic()
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, wanted: int) -> bool:
        """Wait until so many jobs may be enqueued; False when the run is over."""
        while not self._stop.exists():
            with self._lock:
                behind = (time.monotonic() - self._start) * self._rate - self._taken
                if behind > 0 and not self._pause.exists():
                    self._taken += wanted
                    return True
            time.sleep(0.02)
        return False


def new_jobs(chance: random.Random, count: int, *, known: bool) -> list[NewJob]:
    """With ids of ours when `known`."""
    names = chance.choices(list(NAMES), list(NAMES.values()), k=count)
    return [new_job(chance, name, new_id() if known else None) for name in names]


def new_job(chance: random.Random, name: str, id_: str | None = None) -> NewJob:
    payload: dict[str, Any] = {}
    if name == "account":
        payload["keys"] = [f"account:{chance.randrange(KEYS)}"]
    elif name == "long":
        payload["keys"] = [f"long:{chance.randrange(KEYS)}"] if chance.random() < 0.5 else []
    elif name in ("keyed", "doomed"):
        payload["keys"] = [f"key:{n}" for n in chance.sample(range(KEYS), chance.choice((1, 1, 2, 3)))]
    payload["seconds"] = chance.uniform(3, 6) if name == "long" else chance.choice((0.0, 0.002, 0.01))
    payload["failures"] = chance.randrange(4)
    payload["at_once"] = chance.random() < 0.5
    delay = chance.uniform(0, 3) if chance.random() < 0.05 else None
    return queue.new(name, payload, id=id_, delay=delay, priority=chance.choice((0, 0, 0, 1)))


class Producer:
    def __init__(self, url: str, name: str, book: Book, pace: Pace, seed: int) -> None:
        self._book = book
        self._pace = pace
        self._seed = seed
        self._url = url
        self._engine = engine_as(url, name, pool_size=8)
        self.broken: BaseException | None = None

    def run(self) -> None:
        """Until the run is over, or one of the threads has met what is no outage."""
        ways = (self._sessions, self._connections, self._bulk, self._bulk, self._known, self._slow, self._asyncpg)
        threads = [threading.Thread(target=self._guarded, args=(way, n)) for n, way in enumerate(ways)]
        for thread in threads:
            thread.daemon = True
            thread.start()
        while self.broken is None and any(thread.is_alive() for thread in threads):
            threads[0].join(0.1)
            threads.append(threads.pop(0))
        if self.broken is not None:
            raise self.broken

    def _guarded(self, way: Callable[[random.Random], None], n: int) -> None:
        try:
            way(random.Random(self._seed * 100 + n))
        except BaseException as error:
            self.broken = error

    def _sessions(self, chance: random.Random) -> None:
        """One job, and then a rollback now and then."""
        while self._pace.take(1):
            with self._outages(), Session(self._engine) as session:
                job = new_jobs(chance, 1, known=False)
                ids = [one.id for one in queue.enqueue_many(session, job)]
                self._end(ids, session.rollback if chance.random() < 0.1 else session.commit, session.rollback)

    def _connections(self, chance: random.Random) -> None:
        while self._pace.take(1):
            with self._outages(), self._engine.connect() as conn:
                done = queue.enqueue(conn, "plain", {"n": chance.random()})
                self._end([done.id], conn.commit, conn.rollback)

    def _bulk(self, chance: random.Random) -> None:
        while self._pace.take(count := chance.randint(50, 400)):
            with self._outages(), self._engine.connect() as conn:
                ids = [one.id for one in queue.enqueue_many(conn, new_jobs(chance, count, known=False))]
                self._end(ids, conn.rollback if chance.random() < 0.05 else conn.commit, conn.rollback)

    def _known(self, chance: random.Random) -> None:
        """With ids: a batch whose outcome is unknown is enqueued again until it is acknowledged."""
        while self._pace.take(count := chance.randint(1, 100)):
            jobs = new_jobs(chance, count, known=True)
            batch = self._book.intend([str(job.id) for job in jobs])
            while self._pace.take(0):
                try:
                    with self._engine.begin() as conn:
                        queue.enqueue_many(conn, jobs)
                    self._book.outcome(batch, "ack")
                    break
                except OUTAGE:
                    time.sleep(0.2)

    def _slow(self, chance: random.Random) -> None:
        """Commits long after it has enqueued: its jobs are late in their lines, and nobody was told of them."""
        while self._pace.take(count := chance.randint(1, 20)):
            with self._outages(), self._engine.connect() as conn:
                ids = [one.id for one in queue.enqueue_many(conn, new_jobs(chance, count, known=False))]
                time.sleep(chance.uniform(0, 2))
                self._end(ids, conn.commit, conn.rollback)

    def _asyncpg(self, chance: random.Random) -> None:
        asyncio.run(self._coroutine(chance))

    async def _coroutine(self, chance: random.Random) -> None:
        limits = {"command_timeout": 15, "timeout": 5}
        engine = create_async_engine(with_driver(self._url, "asyncpg"), connect_args=limits)
        while await asyncio.to_thread(self._pace.take, count := chance.randint(1, 50)):
            batch = None
            try:
                async with AsyncSession(engine) as session:
                    jobs = new_jobs(chance, count, known=False)
                    batch = self._book.intend([one.id for one in await queue.aenqueue_many(session, jobs)])
                    await session.commit()
                self._book.outcome(batch, "ack")
            except OUTAGE:
                await asyncio.sleep(0.2)

    def _end(self, ids: list[str], end: Callable[[], None], rollback: Callable[[], None]) -> None:
        """Commit, or roll back on purpose; an error leaves the outcome open."""
        batch = self._book.intend(ids)
        end()
        self._book.outcome(batch, "abort" if end == rollback else "ack")

    def _outages(self) -> _Outages:
        return _Outages()


class _Outages:
    """An outage ends the block and nothing else; the next try is a moment later."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, OUTAGE):
            time.sleep(0.2)
            return True
        return False


def read_books(folder: Path) -> dict[str, str]:
    """Id to outcome, of all producers: an acknowledged one stays acknowledged."""
    outcomes: dict[str, str] = {}
    for path in sorted(folder.glob("book-*.jsonl")):
        batches: dict[int, tuple[list[str], str]] = {}
        # The last line is half written where the process was killed.
        for text in path.read_text().split("\n")[:-1]:
            line = json.loads(text)
            ids, known = batches.get(line["batch"], ([], "unknown"))
            batches[line["batch"]] = (line.get("ids", ids), line.get("outcome", known))
        outcomes.update({id_: outcome for ids, outcome in batches.values() for id_ in ids})
    return outcomes


def main(url: str, folder: Path, name: str, seed: int, rate: float) -> None:
    logging.basicConfig(level=logging.WARNING)
    producer = Producer(url, name, Book(folder / f"book-{name}.jsonl"), Pace(folder, rate), seed)
    producer.run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
