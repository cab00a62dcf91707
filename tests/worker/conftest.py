from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue, Worker

# But for the lease: a process that gets no processor for as long would lose its jobs.
SHORT = {"lease": 10.0, "sweep_interval": 0.2, "stall_delay": 0.05, "poll_interval": 0.05, "shutdown_timeout": 5.0}


@pytest.fixture
def work(engine: sa.Engine, queue: Queue) -> Iterator[Callable[..., Worker]]:
    """Start a worker with `SHORT` options and those given; it is stopped at the end of the test."""
    workers: list[Worker] = []

    def start(**options: Any) -> Worker:
        on = options.pop("engine", engine)
        worker = Worker(on, queue, **(SHORT | options))
        workers.append(worker)
        return worker.start()

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
def run(engine: sa.Engine, queue: Queue) -> Callable[..., None]:
    """Run a worker until nothing is due that can start."""

    def run_until_idle(**options: Any) -> None:
        Worker(options.pop("engine", engine), queue, **(SHORT | options)).run_until_idle()

    return run_until_idle


@pytest.fixture
def job(engine: sa.Engine, queue: Queue) -> Callable[[str], Job]:
    def read(id_: str) -> Job:
        with engine.connect() as conn:
            job = queue.get(conn, id_)
        assert job is not None
        return job

    return read


@pytest.fixture
def enqueue(engine: sa.Engine, queue: Queue) -> Callable[..., str]:
    def write(name: str, payload: Any = None, **options: Any) -> str:
        with engine.begin() as conn:
            return queue.enqueue(conn, name, payload, **options).id

    return write


@pytest.fixture
def sql(engine: sa.Engine) -> Callable[..., list[Any]]:
    """Run one statement in a transaction of its own; its rows."""

    def execute(statement: str, **parameters: Any) -> list[Any]:
        with engine.begin() as conn:
            result = conn.execute(sa.text(statement), parameters)
            return list(result) if result.returns_rows else []

    return execute
