"""The parts of a running worker, put together: what each gets, and the order in which they start and end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sqlane_sa.queue import Queue
from sqlane_sa.sqlstate import is_unreachable
from sqlane_sa.values.errors import SqlaneError
from sqlane_sa.values.outcome import Released
from sqlane_sa.worker.advice import advise
from sqlane_sa.worker.attempts import left_running
from sqlane_sa.worker.database import Connector, Database
from sqlane_sa.worker.deadlines import Deadlines, deadline_for, idle_limit_for
from sqlane_sa.worker.descriptors import Canary
from sqlane_sa.worker.driver import can_listen
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.handler_engine import HandlerEngine
from sqlane_sa.worker.handlers import Handlers
from sqlane_sa.worker.heartbeat import Heartbeat
from sqlane_sa.worker.life import Flag
from sqlane_sa.worker.listener import Listener
from sqlane_sa.worker.loop import Loop
from sqlane_sa.worker.options import Options
from sqlane_sa.worker.running import SHUTDOWN, RunningJobs
from sqlane_sa.worker.service import Service, first_line
from sqlane_sa.worker.sweeper import Sweeper
from sqlane_sa.worker.tally import Tally
from sqlane_sa.worker.timer import Timer
from sqlane_sa.worker.transactions import read_committed
from sqlane_sa.worker.writer import Writer

log = logging.getLogger("sqlane_sa.worker")

LOOP_BACKOFF = 1.0
"""Seconds between two tries of the loop in an outage, at most: jobs wait for it. The other parts leave more."""
CANCEL_GRACE = 1.0
"""Seconds that cancelled handlers get to return before their jobs are released over their heads."""
FLUSH_GRACE = 5.0
"""Seconds for the last writes of a shutdown; with the database down, the leases do the rest."""


class Parts:
    """The threads of one run of a worker, and the order in which they start and end."""

    def __init__(self, engine: Engine, queue: Queue, options: Options, give_up: Callable[[str], None]) -> None:
        self._options = options
        self._queue = queue
        self._give_up = give_up
        self._lock = threading.Lock()
        self._state = "new"
        self._ended: dict[str, bool] = {}
        self._starter: Service | None = None
        self._canary = Canary()
        self._deadlines = deadlines = Deadlines(deadline_for(options.lease), idle_limit=idle_limit_for(options.lease))
        self._connector = connector = Connector(engine, deadlines)
        self._handler_engine = HandlerEngine(engine, connector, options.concurrency)
        self.tally = Tally()
        self.jobs = RunningJobs(self.tally.count)
        self.timer = Timer(self.jobs, options.concurrency, give_up if options.exit_when_stuck else None)
        self.handlers = Handlers(
            Execution(
                queue,
                partial(read_committed, self._handler_engine, deadlines),
                connector.engine().begin,
                deadlines,
            ),
            self.jobs,
            options.concurrency,
            self.timer.watch,
            give_up,
        )
        databases = [connector.database() for _ in range(4)]
        self.heartbeat = Heartbeat(databases[0], queue.tables, self.jobs, options.lease)
        wakeups = options.wakeups and can_listen(engine)
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
            self.jobs,
            interval=options.sweep_interval,
            lease=options.lease,
            stall_delay=options.stall_delay,
        )
        self.writer = Writer(databases[3], queue, self.jobs)
        self.listener = (
            Listener(connector, deadlines, queue.tables, self.loop.ear, self.loop.wake, self.loop.rely_on_wakeups)
            if wakeups
            else None
        )
        self.services = self._make_services(*databases)

    def _make_services(self, heartbeat: Database, loop: Database, sweeper: Database, writer: Database) -> list[Service]:
        """The threads, each with the connection that it closes after an error, in the order in which they start."""
        give_up = self._give_up
        sweep_backoff = max(LOOP_BACKOFF, self._options.sweep_interval)
        services = [
            Service("deadlines", self._deadlines.run_once, _nothing, give_up),
            Service("tally", self.tally.run_once, _nothing, give_up),
            Service("timer", self._run_timer, _nothing, give_up),
            Service("heartbeat", self.heartbeat.run_once, heartbeat.close, give_up),
            Service("sweeper", self.sweeper.run_once, sweeper.close, give_up, longest_backoff=sweep_backoff),
            Service("writer", self.writer.run_once, writer.close, give_up),
            Service(
                "loop", self.loop.run_once, loop.close, give_up, lambda: loop.committed, longest_backoff=LOOP_BACKOFF
            ),
        ]
        if self.listener:
            services.insert(1, Service("listener", self.listener.run_once, self.listener.close, give_up))
        return services

    def start(self) -> None:
        with self._lock:
            if self._state == "new":
                self._state = "started"
                for service in self.services:
                    service.start()
                names = ", ".join(self._options.names)
                log.info("worker %s started: %s", self._options.worker_id, names)
                advise(self._queue)

    def start_later(self, check: Callable[[], None], problem: DBAPIError) -> None:
        """Start once `check` passes; `problem` is why it does not now."""

        def try_to_start() -> float:
            try:
                check()
            except SqlaneError as error:
                self._give_up(str(error))
            except DBAPIError as error:
                if is_unreachable(error):
                    raise
                self._give_up(first_line(error))
            else:
                self.start()
            starter.stop()
            return 0.0

        advice = "correct the URL if it is wrong"
        self._starter = starter = Service("database", try_to_start, _nothing, self._give_up, advice=advice)
        starter.start(after=problem)

    def shut_down(self, patience: float, hurry: Flag) -> None:
        with self._lock:
            started, self._state = self._state == "started", "ended"
        if not started:
            if self._starter is not None:
                self._starter.stop()
            self._close()
            return
        self.loop.stop_claiming()
        log.info("worker %s claims nothing more; its handlers have %g s", self._options.worker_id, patience)
        self._wait_until(lambda: self.loop.settled.is_set() and not self.jobs, patience, hurry)
        if self.jobs:
            for job in self.jobs.snapshot():
                job.cancel(SHUTDOWN)
            self._wait_until(lambda: not self.jobs, CANCEL_GRACE)
            self._release_running()
        self._wait_until(lambda: self.loop.settled.is_set() and not (self.jobs or self.loop.asleep), FLUSH_GRACE)
        self._stop_services()
        self.handlers.stop()

    def _run_timer(self) -> float:
        if not self._canary.alive:
            self._canary.close()  # once is enough
            self._give_up("something in this process has closed all its open files")
        return self.timer.run_once()

    @staticmethod
    def _wait_until(done: Callable[[], bool], patience: float, hurry: Flag | None = None) -> None:
        """The loop goes on writing meanwhile: a job is gone from `jobs` once its result is written."""
        end = time.monotonic() + patience
        while not done() and not (hurry and hurry.is_set()) and time.monotonic() < end:
            time.sleep(0.01)

    def _release_running(self) -> None:
        """The handlers left behind run on until the process ends: their keys linger for a lease."""
        for job in self.jobs.snapshot():
            if not job.ended:
                outcome = left_running(job, self._options.lease)
                what = "it is released" if isinstance(outcome, Released) else "its attempt has failed, by its timeout"
                log.warning("job %s (%s) still runs at the end of the shutdown; %s", job.id, job.claimed.name, what)
                self.jobs.finish(job, outcome)

    def _stop_services(self) -> None:
        for service in self.services:
            service.stop()
        if self.listener:
            self.listener.stop()
        self.tally.stop()
        self.timer.wake.set()
        self.jobs.wake.set()
        self.jobs.gathered.set()
        self._deadlines.stop()
        self._ended = {service.name: service.join(1.0) for service in self.services}
        self.tally.say()
        self._close()

    def _close(self) -> None:
        # What a thread waits on is closed once that thread has ended.
        if self._ended.get("loop", True):
            self.jobs.wake.close()
        if self.listener and self._ended.get("listener", True):
            self.listener.release()
        self._handler_engine.dispose()
        self._connector.close()
        self._canary.close()


def _nothing() -> None:
    """Tally, timer and deadlines hold nothing that an error could leave behind."""
