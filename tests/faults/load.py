"""A queue under load by real processes while a fault comes and goes, and what is counted afterwards."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sqlane_sa.worker.parts import LOOP_BACKOFF
from tests.faults import load_worker
from tests.faults.beat import Beat, processor_waits
from tests.faults.fleet import WorkerProcess
from tests.faults.load_counts import Counts, count
from tests.faults.load_producer import Producer
from tests.support import wait_until

OPTIONS: dict[str, Any] = {
    "lease": 2.0,
    "sweep_interval": 0.3,
    "stall_delay": 0.1,
    "poll_interval": 0.1,
    "shutdown_timeout": 10.0,
}
UNDONE = "SELECT EXISTS (SELECT FROM sqlane_jobs WHERE status IN ('pending', 'running') AND created_at <= :until)"
PATIENCE = 60.0
"""Seconds to wait for what has to come."""


class Load:
    """Worker processes and a producer on the migrated database of `url`, from `start` or the start of the block.

    `watch_url` is for the looks of the test where the fault is one of the load's role, or of its way to the server.
    Log files go to `folder`; `options` are the workers', and `connect_args` those of all engines of the load.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        workers: int = 2,
        watch_url: str | None = None,
        ledger: bool = True,
        **options: Any,
    ) -> None:
        self.url = url
        self.options = OPTIONS | options
        # Few looks find their connection ended by the fault; a new one for each look would cost more than the load.
        self.engine = sa.create_engine(
            watch_url or url, pool_pre_ping=True, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3}
        )
        if ledger:
            with self.engine.connect() as conn:
                conn.exec_driver_sql(load_worker.LEDGER)
        self.producer = Producer(url, options.get("connect_args"))
        self._folder = folder
        self._size = workers
        self._workers: list[WorkerProcess] = []
        self._fault_end: tuple[float, Any] | None = None
        self._beat = Beat()
        self._waits = 0.0

    def __enter__(self) -> Self:
        try:
            self.producer.start()
            for _ in range(self._size):
                self.add_worker()
            self.wait_for_start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self.producer.halt()
        self._beat.stop()
        self.engine.dispose()

    def wait_for_start(self) -> None:
        """Wait until every worker runs, and jobs are being done."""
        wait_until(lambda: self.check_alive() or all("started:" in log for log in self.logs), PATIENCE, "all workers")
        self.wait_for_progress()

    def add_worker(self) -> None:
        """One more process, which ends with this one whatever ends it."""
        name = f"worker-{len(self._workers)}"
        options = self.options | {"worker_id": name}
        self._workers.append(WorkerProcess(load_worker.serve, self.url, options, name, self._log(len(self._workers))))

    @property
    def logs(self) -> list[str]:
        """What each worker said, without the jobs that fail as they should."""
        texts = [worker.said().splitlines() for worker in self._workers]
        return ["\n".join(line for line in lines if "as it should" not in line) for lines in texts]

    def scalar(self, sql: str, **parameters: Any) -> Any:
        with self.engine.connect() as conn:
            return conn.scalar(sa.text(sql), parameters)

    def wait_for_progress(self, jobs: int = 20) -> None:
        """Wait until so many more jobs have ended."""
        ended = "SELECT count(*) FROM sqlane_jobs WHERE finished_at IS NOT NULL"
        goal = self.scalar(ended) + jobs
        wait_until(lambda: self.scalar(ended) >= goal, PATIENCE, f"{jobs} more ended jobs")

    def last(self, seconds: float) -> None:
        """Let the fault last so long; the workers are to live through it."""
        end = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= end or self.check_alive(), timeout=seconds + 20)

    def check_alive(self) -> None:
        codes = [worker.poll() for worker in self._workers]
        assert codes == [None] * len(codes), "\n".join([f"workers ended with {codes}", *self.logs])

    def fault_ended(self) -> None:
        """The moment that the recovery is counted from."""
        self._beat.start()
        self._waits = self._worker_waits()
        self._fault_end = time.monotonic(), self.scalar("SELECT clock_timestamp()")

    def finish(self, fault: str, done: str) -> Counts:
        """Wait until what was enqueued before the end of the fault has ended, and some more; stop all; count; and print
        a line for the table of docs/reliability.md."""
        recovery = self._wait_for_recovery()
        # A beat finds out what nobody got; it sleeps more than workers do, and is preferred to them.
        withheld = self._beat.stop() + self._worker_waits() - self._waits
        self.wait_for_start()
        self.producer.stop()
        quiet = self._wait_until_done("infinity")  # the last failure jobs too, which are made while we wait
        self.check_alive()
        counts = count(self.engine, self.producer)
        print(
            f"\nreliability: {fault} | {done} | {counts.jobs} jobs, {counts.recovered} of them unacknowledged | "
            f"lost {counts.lost} | repeated {counts.repeated} ({counts.stalled} stalled, {counts.retried} retried) | "
            f"{recovery:.1f} s, of which the machine withheld at most {withheld:.1f} s"
        )
        self._end_workers()
        assert quiet, f"jobs were left: {counts}"
        assert self.is_in_time(recovery, withheld), (
            f"recovered after {recovery:.1f} s; promised: {self.bound:.1f} s, and the machine withheld {withheld:.1f} s"
        )
        return counts

    def _worker_waits(self) -> float:
        return processor_waits(worker.pid for worker in self._workers)

    def is_in_time(self, recovery: float, withheld: float) -> bool:
        """Whether it kept the bound, but for the time that the machine withheld: no clock is exact on a busy one."""
        return recovery <= self.bound + withheld

    @property
    def bound(self) -> float:
        """Seconds from the end of a fault to the end of all from before it: the lease of a claim that was lost, the
        sweep, the linger of the same length, the delay of a stall, a poll, and 1 s, in which the loop tries again."""
        options = self.options
        leases = 2 * options["lease"]
        return leases + options["sweep_interval"] + options["stall_delay"] + options["poll_interval"] + LOOP_BACKOFF

    def _wait_for_recovery(self) -> float:
        assert self._fault_end is not None, "the fault goes on"
        began, until = self._fault_end
        assert self._wait_until_done(until), "\n".join(["not recovered", *self.logs])
        return time.monotonic() - began

    def _wait_until_done(self, until: Any, timeout: float = PATIENCE) -> bool:
        """Whether all that was enqueued `until` then has ended in time."""
        end = time.monotonic() + timeout
        # One look decides: at the next, a transaction from before `until` may have been committed.
        return wait_until(lambda: self._seen_done(until, end), timeout + 10) == "done"

    def _seen_done(self, until: Any, end: float) -> str:
        if not self._undone(until):
            return "done"
        return "late" if time.monotonic() > end else ""

    def _undone(self, until: Any) -> bool:
        self.check_alive()
        try:
            return bool(self.scalar(UNDONE, until=until))
        except DBAPIError:
            return True

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        codes = [worker.wait() for worker in self._workers]
        assert codes == [0] * len(codes), "\n".join([f"exit codes {codes}", *self.logs])

    def _log(self, n: int) -> Path:
        return self._folder / f"worker-{n}.log"
