"""Handlers: a pool of threads for `def`, an event loop for `async def`, and one count of slots for both."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue

from sqlane_sa.values.outcome import Outcome, Released
from sqlane_sa.worker.event_loop import EventLoop
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs

log = logging.getLogger("sqlane_sa.worker")

NO_OUTCOME_DELAY = 1.0


class Handlers:
    """Starts claimed jobs, at most `concurrency` at a time; the rest wait here in order.

    A handler that ends hands its slot to the next waiting job itself, without the loop.
    """

    def __init__(
        self,
        execution: Execution,
        jobs: RunningJobs,
        concurrency: int,
        watch: Callable[[RunningJob], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._execution = execution
        self._jobs = jobs
        self._watch = watch
        self.concurrency = concurrency
        self._lock = threading.Lock()
        self._ready: deque[RunningJob] = deque()
        self.occupied = 0
        self._submitted = 0
        self._occupied_at = self._worked = 0.0
        self.refill_at = -1
        """The loop, while it sleeps, is to be woken when no more jobs than this are active."""
        self._inbox: deque[RunningJob | None] = deque()
        self._arrivals: SimpleQueue[None] = SimpleQueue()
        self._idle_threads = 0
        self._threads = 0
        self._event_loop = EventLoop(give_up)
        self._created: list[RunningJob] = []

    def submit(self, jobs: Iterable[RunningJob]) -> None:
        """Start these jobs in order, now or as slots come free."""
        with self._lock:
            before = len(self._ready)
            self._ready.extend(jobs)
            self._submitted += len(self._ready) - before
        self._start_more()

    def _start_more(self) -> None:
        """Start what waits: all tasks that have a slot, and one thread, which has the next one started.

        Threads that were all started at once would only wait for each other's interpreter, and the loop for theirs,
        where handlers end sooner than a thread can begin.
        """
        following = self._take_started()
        if following is not None:
            self._start_in_thread(following)

    def _pass_on(self, job: RunningJob) -> RunningJob:
        """The same in the thread that is about to run `job`. What it is to run then: that one or, where a new thread
        had to be made, which begins at once, the one that follows; so that they start in order."""
        while (following := self._take_started()) is not None:
            if self._hand_over(following):
                break
            if not self._spawn(job, passes_on=False):
                self._put_back([following])
                break
            job = following
        return job

    def _take_started(self) -> RunningJob | None:
        """Give slots to what waits, and start the tasks among it. The first job that needs a thread, if one does."""
        asynchronous: list[RunningJob] = []
        in_thread: RunningJob | None = None
        with self._lock:
            while in_thread is None and self.occupied < self.concurrency and (job := self._waiting()) is not None:
                self._occupy(1)
                if job.definition.is_async:
                    asynchronous.append(job)
                else:
                    in_thread = job
        if asynchronous:
            self._start_tasks(asynchronous)
        return in_thread

    def _occupy(self, slots: int) -> None:
        """Take slots, or give them back. Under the lock."""
        now = time.monotonic()
        if self.occupied:
            self._worked += now - self._occupied_at
        self._occupied_at = now
        self.occupied += slots

    def progress(self) -> tuple[int, float]:
        """How many jobs have ended here so far, and in how many seconds with something to do."""
        with self._lock:
            self._occupy(0)
            return self._submitted - self.active, self._worked

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
        taken = list(iter(self._waiting, None))
        with self._lock:
            self._submitted -= len(taken)
        return taken

    def stop(self) -> None:
        """Let the threads end once they are idle. Handlers that still run are left to themselves."""
        for _ in range(self._threads):
            self._put(None)
        self._event_loop.stop()
        self._execution.stop()

    def _start_in_thread(self, job: RunningJob) -> None:
        if not (self._hand_over(job) or self._spawn(job)):
            self._put_back([job])

    def _hand_over(self, job: RunningJob) -> bool:
        """To a thread that has nothing to do."""
        with self._lock:
            idle = self._idle_threads > 0
            self._idle_threads -= idle
        if idle:
            self._put(job)
        return idle

    def _put(self, job: RunningJob | None) -> None:
        """For an idle thread; None is for one to end."""
        self._inbox.append(job)
        self._arrivals.put(None)

    def _spawn(self, job: RunningJob, *, passes_on: bool = True) -> bool:
        """Run it in a new thread, which has the next one started, unless the caller goes on with that."""
        with self._lock:
            self._threads += 1
            name = f"sqlane-handler-{self._threads}"
        try:
            threading.Thread(target=self._work, args=(job, passes_on), name=name, daemon=True).start()
        except RuntimeError as error:  # the system's limit of threads, or of memory for their stacks
            log.error("%s could not be started: %s; its job waits", name, error)
            with self._lock:
                self._threads -= 1
            return False
        return True

    def _start_tasks(self, jobs: list[RunningJob]) -> None:
        try:
            self._event_loop.call(self._create_tasks, jobs)
        except (RuntimeError, OSError) as error:  # the same limits, and that of open files
            log.error("the event loop could not be started: %s; its jobs wait", error)
            self._put_back(jobs)

    def _put_back(self, jobs: list[RunningJob]) -> None:
        """They wait for the slots of others, and are handed back when there are none."""
        with self._lock:
            self._occupy(-len(jobs))
            self._ready.extendleft(reversed(jobs))

    def _work(self, first: RunningJob, passes_on: bool) -> None:
        context = copy_context()
        job: RunningJob | None = self._pass_on(first) if passes_on else first
        while job is not None:
            self._work_off(job, context)
            job = self._get()
            if job is not None:
                job = self._pass_on(job)

    def _get(self) -> RunningJob | None:
        """The next job of an idle thread. What arrives is told of first and taken then: an exception that a handler has
        had sent to its thread, and that comes late, interrupts the wait, and what was to be told of is told again."""
        while True:
            try:
                self._arrivals.get()
                return self._inbox.popleft()
            except IndexError:
                continue  # told of twice
            except BaseException as error:
                self._arrivals.put(None)
                _say_late(error)

    def _work_off(self, first: RunningJob, context: Context) -> None:
        """This job, and those that wait, one after the other. The thread counts as idle then."""
        job: RunningJob | None = first
        while job is not None:
            following = self._work_one(job, context)
            if following is not None and following.definition.is_async:
                self._start_tasks([following])
                following = None
            job = following

    def _work_one(self, job: RunningJob, context: Context) -> RunningJob | None:
        """The job that takes over its slot. An exception that a handler has had sent to its thread may come anywhere
        after it has returned."""
        outcome: Outcome | None = Released(NO_OUTCOME_DELAY)
        following: RunningJob | None = job
        try:
            outcome = self._run(job, context.copy())
            following = self._next(in_thread=True)
            self._jobs.finish(job, outcome)
        except BaseException as error:
            _say_late(error)
            if following is job:
                following = self._next(in_thread=True)
            if not job.ended:
                self._jobs.finish(job, outcome)
            self._jobs.call_loop()  # the call may be what was interrupted
        return following

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
            job.thread = threading.get_ident()
            job.deadline = now + job.definition.timeout
            self._watch(job)

    def _next(self, *, in_thread: bool = False) -> RunningJob | None:
        """The job that takes over the slot, or None, and the slot is free."""
        following = self._waiting()
        if following is None or (in_thread and following.definition.is_async):
            with self._lock:
                # Again, for one that was submitted meanwhile: it found no free slot.
                following = following or self._waiting()
                if following is None:
                    self._occupy(-1)
                # In one step with the slot: whoever takes that must find this thread, and not make one more.
                self._idle_threads += in_thread and (following is None or following.definition.is_async)
        if self._jobs.waiting and self.active <= self.refill_at:
            self._jobs.call_loop()
        return following

    def _waiting(self) -> RunningJob | None:
        """Take the first job that waits. In one step, which needs no lock."""
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def _create_tasks(self, jobs: list[RunningJob]) -> None:
        for job in jobs:  # which may grow
            coroutine = self._run_async(job)
            try:
                job.task = self._event_loop.create_task(coroutine)
            except BaseException as error:
                coroutine.close()
                self._end_without_task(job, error, jobs)
        self._look_soon(jobs)

    def _end_without_task(self, job: RunningJob, error: BaseException, jobs: list[RunningJob]) -> None:
        """The next one is left to the caller: each would be called by the one before it, until the stack is full."""
        following = self._next()
        self._jobs.finish(job, _without_outcome(job, error))
        if following is None:
            return
        if following.definition.is_async:
            jobs.append(following)
        else:
            self._start_in_thread(following)

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


def _say_late(error: BaseException) -> None:
    with suppress(Exception):  # a handler of the application's log may be what fails
        log.warning("%s came to a thread whose handler had returned; it goes on", type(error).__name__)


def _without_outcome(job: RunningJob, error: BaseException) -> Outcome:
    """The last resort, whatever failed around the handler: the slot is given back, and the job with it."""
    with suppress(Exception):  # a handler of the application's log may be what fails
        log.critical("job %s (%s) ended without an outcome; it is released", job.id, job.claimed.name, exc_info=error)
    return Released(NO_OUTCOME_DELAY)
