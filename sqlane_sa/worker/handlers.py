"""Handlers: a pool of threads for `def`, one event loop in its own thread for `async def`, and one count for both."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from sqlane_sa.values.outcome import Outcome, Released
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs

log = logging.getLogger("sqlane_sa.worker")

NO_OUTCOME_DELAY = 1.0


class Handlers:
    """Starts claimed jobs, at most `concurrency` at a time; the rest wait here in order.

    A handler that ends hands its slot to the next waiting job itself, without the loop.
    """

    def __init__(
        self, execution: Execution, jobs: RunningJobs, concurrency: int, watch: Callable[[RunningJob], None]
    ) -> None:
        self._execution = execution
        self._jobs = jobs
        self._watch = watch
        self.concurrency = concurrency
        self._lock = threading.Lock()
        self._ready: deque[RunningJob] = deque()
        self.occupied = 0
        self._inbox: SimpleQueue[RunningJob | None] = SimpleQueue()
        self._idle_threads = 0
        self._threads = 0
        self._event_loop = EventLoop()
        self._created: list[RunningJob] = []

    def submit(self, jobs: Iterable[RunningJob]) -> None:
        """Start these jobs in order, now or as slots come free."""
        starting: list[RunningJob] = []
        with self._lock:
            self._ready.extend(jobs)
            while self.occupied < self.concurrency and (job := self._waiting()) is not None:
                starting.append(job)
                self.occupied += 1
        self._start(starting)

    @property
    def active(self) -> int:
        """Jobs that run here or wait for a slot."""
        return self.occupied + len(self._ready)

    @property
    def oldest_waiting(self) -> float | None:
        """When the first job that waits for a slot was claimed (monotonic seconds)."""
        try:
            return self._ready[0].queued_at
        except IndexError:
            return None

    def take_waiting(self) -> list[RunningJob]:
        """The jobs that were not started yet; they will not be."""
        return list(iter(self._waiting, None))

    def stop(self) -> None:
        """Let the threads end once they are idle. Handlers that still run are left to themselves."""
        for _ in range(self._threads):
            self._inbox.put(None)
        self._event_loop.stop()

    def _start(self, jobs: list[RunningJob]) -> None:
        asynchronous = [job for job in jobs if job.definition.is_async]
        if asynchronous:
            self._start_tasks(asynchronous)
        for job in jobs:
            if not job.definition.is_async:
                self._start_in_thread(job)

    def _start_in_thread(self, job: RunningJob) -> None:
        with self._lock:
            spawn = self._idle_threads == 0
            if spawn:
                self._threads += 1
                name = f"sqlane-handler-{self._threads}"
            else:
                self._idle_threads -= 1
        if not spawn or self._spawn(name):
            self._inbox.put(job)
            return
        with self._lock:
            self._threads -= 1
        self._put_back([job])

    def _start_tasks(self, jobs: list[RunningJob]) -> None:
        try:
            self._event_loop.call(self._create_tasks, jobs)
        except (RuntimeError, OSError) as error:  # the same limits, and that of open files
            log.error("the event loop could not be started: %s; its jobs wait", error)
            self._put_back(jobs)

    def _put_back(self, jobs: list[RunningJob]) -> None:
        """They wait for the slots of others, and are handed back when there are none."""
        with self._lock:
            self.occupied -= len(jobs)
            self._ready.extendleft(reversed(jobs))

    def _spawn(self, name: str) -> bool:
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:  # the system's limit of threads, or of memory for their stacks
            log.error("%s could not be started: %s; its job waits", name, error)
            return False
        return True

    def _work(self) -> None:
        context = copy_context()
        while (first := self._inbox.get()) is not None:
            job: RunningJob | None = first
            while job is not None:
                outcome = self._run(job, context.copy())
                following = self._next()
                self._jobs.finish(job, outcome)
                if following is not None and following.definition.is_async:
                    self._start_tasks([following])
                    following = None
                job = following
            with self._lock:
                self._idle_threads += 1

    def _run(self, job: RunningJob, context: Context) -> Outcome | None:
        try:
            self._begin(job)
            return context.run(self._execution.run, job)
        except BaseException as error:
            return _without_outcome(job, error)

    def _begin(self, job: RunningJob) -> None:
        now = time.monotonic()
        job.started_at = now
        if job.lease_end <= now:
            # The process was paused while the job waited for its slot: it is somebody else's by now.
            job.cancel(LEASE_LOST)
        elif job.definition.timeout is not None:
            job.deadline = now + job.definition.timeout
            self._watch(job)

    def _next(self) -> RunningJob | None:
        """The job that takes over the slot, or None, and the slot is free."""
        following = self._waiting()
        if following is None:
            with self._lock:
                # Again, for one that was submitted meanwhile: it found no free slot.
                following = self._waiting()
                if following is None:
                    self.occupied -= 1
        return following

    def _waiting(self) -> RunningJob | None:
        """Take the first job that waits. In one step, which needs no lock."""
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def _create_tasks(self, jobs: list[RunningJob]) -> None:
        for job in jobs:
            job.task = self._event_loop.create_task(self._run_async(job))
        self._look_soon(jobs)

    async def _run_async(self, job: RunningJob) -> None:
        try:
            self._begin(job)
            outcome = await self._execution.run_async(job)
        except BaseException as error:
            outcome = _without_outcome(job, error)
        self._end(job, outcome)

    def _end(self, job: RunningJob, outcome: Outcome | None) -> None:
        following = self._next()
        self._event_loop.tasks.discard(job.task)
        self._jobs.finish(job, outcome)
        if following is None:
            return
        if following.definition.is_async:
            self._create_tasks([following])  # this is the event loop's thread
        else:
            self._start_in_thread(following)

    def _look_at_created(self) -> None:
        """A task that somebody cancelled before its first step has ended without having run.

        One look for many: a callback at the end of each task would be a fifth of what a task costs.
        """
        created, self._created = self._created, []
        unstarted = [(job, job.task) for job in created if job.started_at is None and job.task is not None]
        self._look_soon([job for job, task in unstarted if not task.done()])
        for job, task in unstarted:
            if task.done() and not job.ended:
                self._end(job, Released(None))

    def _look_soon(self, created: list[RunningJob]) -> None:
        if created and not self._created:
            self._event_loop.call_soon(self._look_at_created)
        self._created += created


def _without_outcome(job: RunningJob, error: BaseException) -> Outcome:
    """The last resort, whatever failed around the handler: the slot is given back, and the job with it."""
    with suppress(Exception):  # a handler of the application's log may be what fails
        log.critical("job %s (%s) ended without an outcome; it is released", job.id, job.claimed.name, exc_info=error)
    return Released(NO_OUTCOME_DELAY)


class EventLoop:
    """An asyncio loop in a thread of its own, started at the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = Context()
        self.tasks: set[asyncio.Task[None] | None] = set()
        """Those that have not ended: the loop itself keeps only weak references."""
        self._stopped = False

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop's thread, soon."""
        with self._lock:
            if self._loop is None:
                self._loop = self._started()
            self._loop.call_soon_threadsafe(function, *args)

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        try:
            threading.Thread(target=self._run, args=(loop,), name="sqlane-async", daemon=True).start()
        except BaseException:
            loop.close()
            raise
        return loop

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Called in the loop's thread. With a context of its own: the caller's may be that of another job."""
        assert self._loop is not None
        task = self._loop.create_task(coroutine, context=self._context.copy())
        self.tasks.add(task)
        return task

    def call_soon(self, function: Callable[[], object]) -> None:
        """Called in the loop's thread."""
        assert self._loop is not None
        self._loop.call_soon(function, context=self._context)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        self._context = copy_context()
        while not self._stopped:
            try:
                loop.run_forever()
            except BaseException:
                # SystemExit in a task that a handler left behind leaves run_forever; the other tasks go on.
                log.exception("a task of a handler stopped the event loop; it goes on")
        if not self.tasks:
            loop.close()
