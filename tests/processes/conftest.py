from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue
from tests.processes import app
from tests.support import wait_until

SHORT = {"lease": 1.0, "sweep_interval": 0.2, "stall_delay": 0.1, "poll_interval": 0.1, "shutdown_timeout": 10.0}

Start = Callable[..., subprocess.Popen[str]]

PATIENCE = 60.0
"""Seconds for what begins with the start of a process, on a machine that has much to do."""


@pytest.fixture
def start(database_url: str, engine: sa.Engine, tmp_path: Path) -> Iterator[Start]:
    """Start a worker process with `SHORT` options and those given; all are killed at the end of the test."""
    with engine.begin() as conn:
        conn.exec_driver_sql(app.LEDGER)
    processes: list[subprocess.Popen[str]] = []

    def start_one(name: str = "", *, start_new_session: bool = False, **options: Any) -> subprocess.Popen[str]:
        with open(tmp_path / f"worker-{len(processes)}.log", "w") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(app.__file__)), database_url, json.dumps(SHORT | options)],
                env=os.environ | {"WORKER": name},
                stderr=log,
                text=True,
                start_new_session=start_new_session,
            )
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


class Watch:
    """What the database says, read outside any transaction."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.queue: Queue = app.queue

    def job(self, id_: str) -> Job:
        with self._engine.connect() as conn:
            job = self.queue.get(conn, id_)
        assert job is not None
        return job

    def rows(self, sql: str, **parameters: Any) -> list[Any]:
        with self._engine.connect() as conn:
            return list(conn.execute(sa.text(sql), parameters))

    def events(self, id_: str, event: str = "start") -> list[Any]:
        return self.rows("SELECT * FROM ledger WHERE job_id = :id AND event = :event ORDER BY n", id=id_, event=event)

    def wait_for(self, id_: str, event: str = "start", times: int = 1) -> list[Any]:
        return wait_until(
            lambda: found if len(found := self.events(id_, event)) >= times else [],
            PATIENCE,
            f"{times} x {event} of {id_}",
        )

    def wait_status(self, id_: str, *statuses: str) -> Job:
        return wait_until(lambda: job if (job := self.job(id_)).status in statuses else None, PATIENCE, f"{statuses}")  # type: ignore[return-value]


@pytest.fixture
def watch(engine: sa.Engine) -> Watch:
    return Watch(engine)


@pytest.fixture
def enqueue(engine: sa.Engine) -> Callable[..., str]:
    def enqueue_one(name: str, payload: Any = None, **options: Any) -> str:
        with engine.begin() as conn:
            return app.queue.enqueue(conn, name, payload, **options).id

    return enqueue_one
