"""Worker processes over one database, and what a test reads of their jobs."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.demo.launch import PR_SET_PDEATHSIG
from sqlane_sa.values.job import Job
from tests.processes import app
from tests.processes.conftest import SHORT, Watch
from tests.support import wait_until

LONG = os.environ.get("SQLANE_LONG_FAULTS") == "1"
"""Whether to run the variants that take minutes."""
PATIENCE = 60.0

Serve = Callable[[str, dict[str, Any]], None]

FIGURES = """
SELECT count(*) AS jobs, count(*) FILTER (WHERE status NOT IN ('completed', 'failed')) AS lost, sum(stalls) AS stalls,
       sum(greatest(attempts - 1, 0)) AS retries
FROM sqlane_jobs"""
REPEATED = (
    "SELECT count(*) FROM (SELECT FROM ledger WHERE event = 'start' GROUP BY job_id HAVING count(*) > 1) AS repeated"
)

# Processes are forked from one that has imported everything and opened nothing: a start takes a tenth of the time.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["sqlane_sa.worker.worker", "sqlane_sa.migrations", "psycopg", "tests.processes.app"])


class WorkerProcess:
    """A process that serves the database at a URL; its log is a file."""

    def __init__(self, serve: Serve, url: str, options: dict[str, Any], name: str, log: Path) -> None:
        self._log = log
        log.touch()
        self._process = FORKING.Process(target=_serve, args=(serve, url, options, name, str(log)))
        self._process.start()
        self.pid = self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Nothing happens once it has ended."""
        if self.poll() is None and self.pid is not None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """As of subprocess: minus the signal that ended it."""
        return self._process.exitcode

    def wait(self) -> int:
        """Its exit code."""
        self._process.join(PATIENCE)
        code = self.poll()
        assert code is not None, f"process {self.pid} did not end within {PATIENCE:g} s"
        return code

    @property
    def paused(self) -> bool:
        """Whether a SIGSTOP has stopped it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def kill(self) -> None:
        """As nothing can be refused: SIGKILL, and its end."""
        self._process.kill()
        self._process.join()

    def said(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[str]:
        return self.said().splitlines()


def _serve(serve: Serve, url: str, options: dict[str, Any], name: str, log: str) -> None:
    _end_with_parent()
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    os.environ["WORKER"] = name
    serve(url, options)


def _end_with_parent() -> None:
    """That is the server of forks, and ends with the tests, whatever ends them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def report(watch: Watch, fault: str, done: str) -> None:
    """At rest: a line for the table of docs/reliability.md. A job is repeated for a stall, or as a retry."""
    [found] = watch.rows(FIGURES)
    [(repeated,)] = watch.rows(REPEATED)
    print(
        f"\nreliability: {fault} | {done} | {found.jobs} jobs | lost {found.lost} | "
        f"repeated {repeated} ({found.stalls} stalls, {found.retries} retries)"
    )


class Fleet(Watch):
    """`serve(url, options)` runs a worker until it is stopped; all processes are killed by `close`."""

    def __init__(self, url: str, queue: Queue, serve: Serve, logs: Path) -> None:
        self.engine = sa.create_engine(url)
        super().__init__(self.engine)
        self.queue = queue
        self._url, self._serve, self._logs = url, serve, logs
        self.processes: list[WorkerProcess] = []
        with self.engine.begin() as conn:
            conn.exec_driver_sql(app.LEDGER)

    def start(self, name: str = "", **options: Any) -> WorkerProcess:
        """Start a worker process with `SHORT` options and those given."""
        log = self._logs / f"worker-{len(self.processes)}.log"
        process = WorkerProcess(self._serve, self._url, SHORT | options, name, log)
        self.processes.append(process)
        return process

    def enqueue(self, name: str, payload: Any = None, **options: Any) -> str:
        with self.engine.begin() as conn:
            return self.queue.enqueue(conn, name, payload or {}, **options).id

    def wait_for(self, id_: str, event: str = "start", times: int = 1, timeout: float = PATIENCE) -> list[Any]:
        return wait_until(
            lambda: found if len(found := self.events(id_, event)) >= times else [],
            timeout,
            f"{times} x {event} of {id_}",
        )

    def wait_status(self, id_: str, *statuses: str) -> Job:
        def found() -> Job | None:
            return job if (job := self.job(id_)).status in statuses else None

        job = wait_until(found, PATIENCE, f"{statuses} of {id_}")
        assert job is not None
        return job

    def completed(self, id_: str) -> Job:
        """Wait until the job is completed; anything else that is final is an error."""
        job = self.wait_status(id_, "completed", "failed")
        assert job.status == "completed", job
        return job

    def releases(self, id_: str) -> int:
        """How often workers say that they gave it back while its handler ran: a start that used no attempt."""
        said = [line for each in self.processes for line in each.lines() if f"job {id_} " in line]
        return sum("it is released" in line for line in said)

    def report(self, fault: str, done: str) -> None:
        report(self, fault, done)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send(signal.SIGCONT)
                process.kill()
        self.engine.dispose()
