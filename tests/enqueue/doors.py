"""The things a job can be enqueued on, under one set of verbs, so that one test serves them all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sqlane_sa import Enqueued, NewJob, Queue
from tests.support import with_driver


class Door:
    """A Session, scoped_session or Connection."""

    def __init__(self, queue: Queue, on: Any) -> None:
        self.queue = queue
        self.on = on

    def add(self, payload: Any = None, **options: Any) -> Enqueued:
        return self.queue.enqueue(self.on, "n", payload, **options)

    def add_many(self, jobs: list[NewJob]) -> list[Enqueued]:
        return self.queue.enqueue_many(self.on, jobs)

    def order(self, number: int) -> None:
        self.on.execute(INSERT, {"number": number})

    def savepoint(self) -> Any:
        return self.on.begin_nested()

    def commit(self) -> None:
        self.on.commit()

    def rollback(self) -> None:
        self.on.rollback()


INSERT = sa.text("INSERT INTO orders (number) VALUES (:number)")


class AsyncDoor(Door):
    """An AsyncSession or AsyncConnection."""

    def __init__(self, queue: Queue, on: Any, runner: asyncio.Runner) -> None:
        super().__init__(queue, on)
        self.runner = runner

    def add(self, payload: Any = None, **options: Any) -> Enqueued:
        return self.runner.run(self.queue.aenqueue(self.on, "n", payload, **options))

    def add_many(self, jobs: list[NewJob]) -> list[Enqueued]:
        return self.runner.run(self.queue.aenqueue_many(self.on, jobs))

    def order(self, number: int) -> None:
        self.runner.run(self.on.execute(INSERT, {"number": number}))

    def savepoint(self) -> Any:
        async def begin() -> Any:
            return await self.on.begin_nested()

        return AsyncSavepoint(self.runner, self.runner.run(begin()))

    def commit(self) -> None:
        self.runner.run(self.on.commit())

    def rollback(self) -> None:
        self.runner.run(self.on.rollback())


class RunSyncDoor(AsyncDoor):
    """The session that `AsyncSession.run_sync` hands to a plain function."""

    def add(self, payload: Any = None, **options: Any) -> Enqueued:
        work = self.on.run_sync(lambda session: self.queue.enqueue(session, "n", payload, **options))
        return self.runner.run(work)

    def add_many(self, jobs: list[NewJob]) -> list[Enqueued]:
        return self.runner.run(self.on.run_sync(lambda session: self.queue.enqueue_many(session, jobs)))


class AsyncSavepoint:
    def __init__(self, runner: asyncio.Runner, savepoint: Any) -> None:
        self.runner = runner
        self.savepoint = savepoint

    def commit(self) -> None:
        self.runner.run(self.savepoint.commit())

    def rollback(self) -> None:
        self.runner.run(self.savepoint.rollback())


SYNC = ("Session", "scoped_session", "Connection")
ASYNC = ("AsyncSession", "AsyncConnection", "run_sync")


@contextmanager
def opened(kind: str, url: str, queue: Queue) -> Iterator[Door]:
    yield from (_sync if kind in SYNC else _async)(kind, url, queue)


def _sync(kind: str, url: str, queue: Queue) -> Iterator[Door]:
    engine = sa.create_engine(url)
    makers: dict[str, Any] = {
        "Session": lambda: Session(engine),
        "scoped_session": lambda: scoped_session(sessionmaker(engine)),
        "Connection": engine.connect,
    }
    on = makers[kind]()
    yield Door(queue, on)
    on.close()
    engine.dispose()


def _async(kind: str, url: str, queue: Queue) -> Iterator[Door]:
    engine = create_async_engine(with_driver(url, "asyncpg"))

    async def start() -> AsyncSession | AsyncConnection:
        return await engine.connect() if kind == "AsyncConnection" else AsyncSession(engine)

    with asyncio.Runner() as runner:
        on = runner.run(start())
        yield (RunSyncDoor if kind == "run_sync" else AsyncDoor)(queue, on, runner)
        runner.run(on.close())
        runner.run(engine.dispose())
