"""The worker: composes store operations, and owns only time, threads and signals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sqlane_sa.queue import Queue
from sqlane_sa.values.errors import HandleError, WorkerError
from sqlane_sa.values.outcome import Released
from sqlane_sa.worker.context import read_committed
from sqlane_sa.worker.database import Database, HandlerEngine, own_engine
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.handlers import Handlers
from sqlane_sa.worker.heartbeat import Heartbeat
from sqlane_sa.worker.listener import Listener
from sqlane_sa.worker.loop import Loop
from sqlane_sa.worker.options import Options
from sqlane_sa.worker.running import SHUTDOWN, RunningJobs
from sqlane_sa.worker.service import Service
from sqlane_sa.worker.signals import stop_signals
from sqlane_sa.worker.sweeper import Sweeper
from sqlane_sa.worker.timer import Timer

log = logging.getLogger("sqlane_sa.worker")

SECONDS = float | timedelta

SIGNAL_LOOK = 0.5
CANCEL_GRACE = 1.0
"""Seconds that cancelled handlers get to return before their jobs are released over their heads."""
FLUSH_GRACE = 5.0
"""Seconds for the last writes of a shutdown; with the database down, the leases do the rest."""


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
        if not isinstance(engine, Engine) or engine.dialect.is_async:
            raise HandleError(
                f"Worker takes an Engine of a synchronous driver, and got {type(engine).__name__}; use "
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
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._failure: str | None = None
        self._running = False

    @property
    def worker_id(self) -> str:
        return self._options.worker_id

    @property
    def failure(self) -> str | None:
        """Which part of the worker died and why, or None."""
        return self._failure

    def run(self) -> None:
        """Work until SIGTERM or SIGINT (or `stop` from another thread), then shut down and return.

        A second signal skips the wait for handlers, a third ends the process. Signal handlers are installed in the
        main thread only, and put back. Raises `WorkerError` when a part of the worker died.
        """
        with self._until_stopped(), stop_signals(self._stopping.set, self._hurry.set):
            self.start()
            try:
                # With a timeout: a signal that the system hands to another thread does not interrupt this wait.
                while not self._stopping.wait(SIGNAL_LOOK):
                    pass
            finally:
                self.stop()

    def start(self) -> Self:
        """Start the threads and return. Raises `SchemaError` before anything is started."""
        if self._parts is not None:
            raise WorkerError("this worker is running already; make another Worker to run two")
        self._failure = None
        # On the application's engine: its first connection makes the dialect ready, for one thread at a time. Engines
        # of our own share the dialect, and would not wait for each other.
        _check_schema_twice(self._engine, self.queue)
        own = own_engine(self._engine)
        parts = Parts(self, own, self._engine, self._options)
        parts.start()
        self._parts = parts
        log.info("worker %s started: %s", self.worker_id, ", ".join(self._options.names))
        return self

    def stop(self) -> None:
        """Shut down: stop claiming, wait `shutdown_timeout` for handlers, cancel, release what still runs, flush.

        Raises `WorkerError` when a part of the worker had died.
        """
        parts, self._parts = self._parts, None
        if parts is None:
            if self._running:
                self._stopping.set()  # it comes while another thread's `run` starts
            return
        self._stopping.set()
        try:
            parts.shut_down(self._options.shutdown_timeout, self._hurry)
        finally:
            self._stopping.clear()
            self._hurry.clear()
        log.info("worker %s stopped", self.worker_id)
        if self._failure:
            raise WorkerError(self._failure)

    def run_until_idle(self) -> None:
        """Work until nothing is due that can start and nothing runs here, then stop. For scripts and tests."""
        with self._until_stopped(), stop_signals(self._stopping.set, self._hurry.set):
            self.start()
            try:
                assert self._parts is not None
                while not self._stopping.is_set() and not self._parts.loop.idle.wait(0.05):
                    pass
            finally:
                self.stop()

    @contextmanager
    def _until_stopped(self) -> Iterator[None]:
        self._running = True
        try:
            yield
        finally:
            self._running = False
            self._stopping.clear()

    def give_up(self, reason: str) -> None:
        """End the worker because a part of it cannot go on: `run` and `stop` raise."""
        log.critical("worker %s gives up: %s", self.worker_id, reason)
        self._failure = self._failure or reason
        self._stopping.set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Parts:
    """The threads of one run of a worker, and the order in which they start and end."""

    def __init__(self, worker: Worker, own: Engine, engine: Engine, options: Options) -> None:
        queue = worker.queue
        self._options = options
        self._handler_engine = HandlerEngine(engine, options.concurrency)
        self.jobs = RunningJobs()
        self.timer = Timer(self.jobs, options.concurrency, worker.give_up if options.exit_when_stuck else None)
        self.handlers = Handlers(
            Execution(queue, partial(read_committed, self._handler_engine), own.begin),
            self.jobs,
            options.concurrency,
            self.timer.watch,
        )
        databases = [Database(own) for _ in range(3)]
        self.heartbeat = Heartbeat(databases[0], queue.tables, self.jobs, options.lease)
        wakeups = options.wakeups and Listener.is_supported(engine)
        if options.wakeups and not wakeups:
            log.warning("wake-ups need the psycopg driver; %s only polls", engine.dialect.driver)
        self.loop = Loop(
            databases[1],
            queue,
            self.jobs,
            self.handlers,
            options.names,
            worker_id=options.worker_id,
            lease=options.lease,
            poll_interval=options.poll_interval,
            wakeups=wakeups,
        )
        self.sweeper = Sweeper(
            databases[2],
            queue,
            interval=options.sweep_interval,
            lease=options.lease,
            stall_delay=options.stall_delay,
        )
        self.listener = Listener(engine, queue.tables, self.loop.wake) if wakeups else None
        self.services = [
            Service("timer", self.timer.run_once, _nothing, worker.give_up),
            Service("heartbeat", self.heartbeat.run_once, databases[0].close, worker.give_up),
            Service("sweeper", self.sweeper.run_once, databases[2].close, worker.give_up),
            Service("loop", self.loop.run_once, databases[1].close, worker.give_up),
        ]
        if self.listener:
            self.services.insert(1, Service("listener", self.listener.run_once, self.listener.close, worker.give_up))

    def start(self) -> None:
        for service in self.services:
            service.start()

    def shut_down(self, patience: float, hurry: threading.Event) -> None:
        self.loop.stop_claiming()
        self._wait_until(lambda: self.loop.settled.is_set() and not self.jobs, patience, hurry)
        if self.jobs:
            for job in self.jobs.snapshot():
                job.cancel(SHUTDOWN)
            self._wait_until(lambda: not self.jobs, CANCEL_GRACE)
            self._release_running()
        self._wait_until(lambda: self.loop.settled.is_set() and not (self.jobs or self.loop.asleep), FLUSH_GRACE)
        self._stop_services()
        self.handlers.stop()

    @staticmethod
    def _wait_until(done: Callable[[], bool], patience: float, hurry: threading.Event | None = None) -> None:
        """The loop goes on writing meanwhile: a job is gone from `jobs` once its result is written."""
        end = time.monotonic() + patience
        pause = hurry or threading.Event()
        while not done() and not pause.is_set() and time.monotonic() < end:
            pause.wait(0.01)

    def _release_running(self) -> None:
        """The handlers left behind run on until the process ends: their keys linger for a lease."""
        for job in self.jobs.snapshot():
            if not job.ended:
                log.warning(
                    "job %s (%s) still runs at the end of the shutdown; it is released", job.id, job.claimed.name
                )
                self.jobs.finish(job, Released(0.0, linger=self._options.lease))

    def _stop_services(self) -> None:
        for service in self.services:
            service.stop()
        if self.listener:
            self.listener.stop()
        self.timer.wake.set()
        self.jobs.wake.set()
        ended = [service.join(1.0) for service in self.services]
        if self.listener and all(ended):
            self.listener.release()
        self._handler_engine.dispose()


def _check_schema_twice(engine: Engine, queue: Queue) -> None:
    """A connection that broke while it was idle in the application's pool takes the whole pool with it."""
    try:
        check_schema(engine, queue)
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        check_schema(engine, queue)


def check_schema(engine: Engine, queue: Queue) -> None:
    """Raises `SchemaError` in one sentence when the tables are behind or ahead. Workers never do DDL."""
    from sqlane_sa import migrations  # loads alembic, which `import sqlane_sa` must not

    migrations.check(engine, queue)


def _nothing() -> None:
    """The timer holds nothing that an error could leave behind."""
