"""A producer that goes on over every fault, and knows of each job whether its commit was acknowledged."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from sqlane_sa import NewJob
from sqlane_sa.values.ids import new_id
from tests.faults.load_worker import queue

PAUSE = 0.02
"""Seconds between two transactions."""
MAX_BACKLOG = 50
"""Jobs that wait, at most: a busy machine gets no load that it cannot bear."""
BACKLOG = sa.text("SELECT count(*) FROM (SELECT FROM sqlane_jobs WHERE status = 'pending' LIMIT :max) AS pending")
KINDS = ("plain", "plain", "plain", "keyed", "keyed", "effect", "discard")
KEYS = ("a", "b", "c")


class Producer:
    """A thread that enqueues in small transactions, every tenth of which it rolls back.

    An id is in one of: `acknowledged` (COMMIT returned), `unknown` (COMMIT failed: it may have happened), `refused`
    (the transaction ended before its COMMIT).
    """

    def __init__(self, url: str, connect_args: dict[str, Any] | None = None) -> None:
        # Each transaction on a connection of its own: a fault tells of the server, not of a pool.
        arguments = {"connect_timeout": 3} | (connect_args or {})
        self._engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=arguments)
        self._random = random.Random(4)
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self.acknowledged: set[str] = set()
        self.unknown: set[str] = set()
        self.refused: set[str] = set()
        self.errors: list[SQLAlchemyError] = []
        self.crash: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def enqueue_one(self, id_: str, *, seconds: float = 0) -> None:
        """One plain job from another thread. Raises what its transaction raises."""
        with self._engine.begin() as conn:
            queue.enqueue(conn, "plain", {"seconds": seconds}, id=id_)
        self.acknowledged.add(id_)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block no transaction of the thread's own is under way."""
        with self._turn:
            yield

    def halt(self) -> None:
        """Begin nothing more, and wait for nothing."""
        self._stop.set()

    def stop(self, timeout: float = 30.0) -> None:
        """Wait for the transaction under way. Raises what ended the producer before."""
        self._stop.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise AssertionError(f"the producer's transaction did not end within {timeout:g} s")
        if self.crash is not None:
            raise self.crash

    def _run(self) -> None:
        try:
            while not self._stop.wait(PAUSE):
                with self._turn:
                    self._enqueue()
        except BaseException as error:
            self.crash = error

    def _enqueue(self) -> None:
        ids = [new_id() for _ in range(self._random.randint(1, 3))]
        outcome = self.refused
        try:
            with self._engine.connect() as conn:
                transaction = conn.begin()
                if conn.scalar(BACKLOG, {"max": MAX_BACKLOG}) == MAX_BACKLOG:
                    return
                queue.enqueue_many(conn, [self._job(id_) for id_ in ids])
                if self._random.random() < 0.1:
                    transaction.rollback()
                else:
                    outcome = self.unknown
                    transaction.commit()
                    outcome = self.acknowledged
        except SQLAlchemyError as error:
            self.errors.append(error)
        outcome.update(ids)

    def _job(self, id_: str) -> NewJob:
        name = self._random.choice(KINDS)
        payload = {"key": self._random.choice(KEYS)} if name == "keyed" else {}
        # Now and then one that is running when the fault comes; with a key more often, for the next one of its line.
        seconds = self._random.choices((0, 0.05, 0.3), (2, 2, 1) if payload else (17, 2, 1))[0]
        return queue.new(name, payload | {"seconds": seconds}, id=id_)
