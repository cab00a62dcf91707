"""The worker: composes store operations, and owns only time, threads and signals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sqlane_sa.queue import Queue
from sqlane_sa.sqlstate import is_unreachable
from sqlane_sa.values.errors import HandleError, WorkerError
from sqlane_sa.worker.deadlines import deadline_for
from sqlane_sa.worker.life import Life, in_worker_thread
from sqlane_sa.worker.options import Options
from sqlane_sa.worker.parts import Parts
from sqlane_sa.worker.readiness import check_schema
from sqlane_sa.worker.signals import stop_signals

log = logging.getLogger("sqlane_sa.worker")

SECONDS = float | timedelta


class Worker:
    """Runs the jobs of a queue in this process.

    `names` are the names to serve (None: all with a handler here); `concurrency` handlers run at a time; times in
    seconds or timedelta. A lease is renewed every third of it. `wakeups=False` only polls. `exit_when_stuck` ends the
    worker with an error once every slot is taken by a handler past its timeout.

    `run()` blocks until a signal; `start()`/`stop()` and `with Worker(...)` run it in threads of this process. Raises
    `DefinitionError` for options, `SchemaError` when the tables are behind or ahead, `WorkerError` when a part died.
    """

    def __init__(
        self,
        engine: Engine,
        queue: Queue,
        *,
        names: Iterable[str] | None = None,
        concurrency: int = 10,
        lease: SECONDS = 60,
        poll_interval: SECONDS = 1.0,
        shutdown_timeout: SECONDS = 30,
        stall_delay: SECONDS = 30,
        sweep_interval: SECONDS = 15,
        wakeups: bool = True,
        worker_id: str | None = None,
        exit_when_stuck: bool = False,
    ) -> None:
        if not isinstance(engine, Engine) or engine.dialect.is_async or engine.dialect.name != "postgresql":
            got = type(engine).__name__ + (f" of {engine.dialect.name}" if isinstance(engine, Engine) else "")
            raise HandleError(
                f"Worker takes an Engine of PostgreSQL and a synchronous driver, and got {got}; use "
                'create_engine("postgresql+psycopg://..."): it runs async def handlers too, in a loop of its own'
            )
        self.queue = queue
        self._engine = engine
        self._options = Options.check(
            queue,
            names=names,
            concurrency=concurrency,
            lease=lease,
            poll_interval=poll_interval,
            shutdown_timeout=shutdown_timeout,
            stall_delay=stall_delay,
            sweep_interval=sweep_interval,
            wakeups=wakeups,
            worker_id=worker_id,
            exit_when_stuck=exit_when_stuck,
        )
        self._parts: Parts | None = None
        self._begins = threading.Lock()
        self._life = Life()
        self._life.over.set()

    @property
    def worker_id(self) -> str:
        return self._options.worker_id

    @property
    def failure(self) -> str | None:
        """Which part of the worker died and why, or None."""
        return self._life.failure

    def run(self) -> None:
        """Work until SIGTERM or SIGINT (or `stop` from another thread), then shut down and return.

        A second signal skips the wait for handlers, a third ends the process. Signal handlers are installed in the
        main thread only, and put back. Raises `WorkerError` when a part of the worker died.
        """
        life = Life()
        with stop_signals(life.wake.set, life.hurry.set):
            self._start(life, patient=True)
            try:
                life.wake.wait()
            finally:
                self._shut_down(life)
        life.raise_failure()

    def start(self) -> Self:
        """Start the threads and return. Raises `SchemaError` before anything is started; a database that cannot be
        reached is waited for in the background, and what is wrong with its tables then ends the worker."""
        life = Life()
        try:
            self._start(life, patient=True)
        finally:
            life.give_back()
        if life.asked:
            self.stop()
        return self

    def _start(self, life: Life, patient: bool) -> None:
        """The caller has charge of it then."""
        self._begin(life)
        try:
            self._parts = self._started(patient)
        except BaseException:
            life.over.set()
            raise

    def _begin(self, life: Life) -> None:
        life.take_charge()
        with self._begins:
            if not (self._life.over.is_set() or self._life.elsewhere):
                raise WorkerError("this worker is running already; make another Worker to run two")
            self._life = life

    def _started(self, patient: bool) -> Parts:
        problem: DBAPIError | None = None
        check = partial(check_schema, self._engine, self.queue, deadline_for(self._options.lease))
        try:
            # One connection before there are threads: the first one makes the dialect ready, which all engines of our
            # own share with the application's, and they would not wait for each other.
            check()
        except DBAPIError as error:
            if not (patient and is_unreachable(error)):
                raise
            problem = error
        parts = Parts(self._engine, self.queue, self._options, self.give_up)
        if problem is None:
            parts.start()
        else:
            parts.start_later(check, problem)
        return parts

    def stop(self) -> None:
        """Shut down: stop claiming, wait `shutdown_timeout` for handlers, cancel, release what still runs, flush.

        A shutdown that is under way is waited for, and so is a start, which it then follows. Called by a handler, or in
        the midst of either by a signal handler of the same thread, it asks for the shutdown and returns. In a process
        that was forked meanwhile there is nothing to stop. Raises `WorkerError` when a part of the worker had died.
        """
        life = self._life
        if life.over.is_set() or life.elsewhere:
            return
        life.ask()
        if life.in_charge:
            return
        if in_worker_thread():
            if not life.taken:
                # No daemon: the process is not to end before the jobs are handed back.
                threading.Thread(target=self._end, args=(life,), name="sqlane-stop", daemon=False).start()
            return
        self._end(life)
        life.over.wait()
        life.raise_failure()

    def _end(self, life: Life) -> None:
        if life.take_charge():
            self._shut_down(life)

    def _shut_down(self, life: Life) -> None:
        assert self._parts is not None
        try:
            self._parts.shut_down(self._options.shutdown_timeout, life.hurry)
            log.info("worker %s stopped", self.worker_id)
        finally:
            self._parts = None
            life.over.set()

    def run_until_idle(self) -> None:
        """Work until nothing is due that can start and nothing runs here, then stop. For scripts and tests.

        Raises at once when the database cannot be reached.
        """
        life = Life()
        with stop_signals(life.wake.set, life.hurry.set):
            self._start(life, patient=False)
            try:
                assert self._parts is not None
                while not life.wake.is_set() and not self._parts.loop.idle.wait(0.05):
                    pass
            finally:
                self._shut_down(life)
        life.raise_failure()

    def give_up(self, reason: str) -> None:
        """End the worker because a part of it cannot go on: nothing more is started, and `run` and `stop` raise."""
        life = self._life
        life.failure = life.failure or reason
        life.wake.set()
        parts = self._parts
        if parts is not None:
            parts.loop.stop_claiming()
        log.critical("worker %s gives up: %s", self.worker_id, reason)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
