"""Jobs that this process holds: claimed, and their results not written yet."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlane_sa.values.definition import Definition
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Outcome
from sqlane_sa.worker.bell import Bell

TIMEOUT = "timeout"
LEASE_LOST = "lease lost"
SHUTDOWN = "shutdown"

MANY = 100
"""So many results, gathered while a turn of the loop is on its way, are written beside it."""

Waiting = TypeVar("Waiting")

_event_lock = threading.Lock()


class RunningJob:
    """A claimed job on its way through this process.

    `cancelled` says why its handler should stop, or is None. Setting and reading it needs no lock: a handler that ends
    in the moment of its timeout is settled by the fences of the database, whichever comes first here.
    """

    __slots__ = (
        "_event",
        "cancelled",
        "claimed",
        "completing",
        "deadline",
        "definition",
        "ended",
        "error",
        "lease_end",
        "passed_over",
        "queued_at",
        "refusal",
        "stack",
        "started_at",
        "task",
        "thread",
    )

    def __init__(self, claimed: ClaimedJob, definition: Definition, now: float, lease: float) -> None:
        self.claimed = claimed
        self.definition = definition
        self.queued_at = now
        self.lease_end = now + lease
        self.started_at: float | None = None
        self.deadline: float | None = None
        self.ended = False
        self.completing = False
        """Whether the handler's own transaction is completing it: then it is neither running nor lost for a moment."""
        self.passed_over = False
        """Whether its result was tried to be written once, while its row was locked."""
        self.refusal: str | None = None
        """Why the database has refused its result for now; None while its row is merely locked."""
        self.error: BaseException | None = None
        self.cancelled: str | None = None
        self.task: asyncio.Task[Any] | None = None
        self.thread: int | None = None
        """That of a handler with a timeout."""
        self.stack = ""
        """Where the handler was when its timeout was over."""
        self._event: threading.Event | None = None

    # Store operations take any object with these.
    @property
    def id(self) -> str:
        return self.claimed.id

    @property
    def lock_token(self) -> str:
        return self.claimed.lock_token

    @property
    def mutex_keys(self) -> Any:
        return self.claimed.mutex_keys

    @property
    def event(self) -> threading.Event:
        """Made when a handler asks for it: most never do, and an event for each job would cost as much as the job."""
        with _event_lock:
            if self._event is None:
                self._event = threading.Event()
                if self.cancelled:
                    self._event.set()
            return self._event

    def cancel(self, reason: str) -> None:
        """Tell the handler to stop: its event is set, and an async one is cancelled. The first reason stays, except
        that a lost lease overrules them all: nothing of such a job may be written."""
        with _event_lock:
            if self.cancelled is None or reason == LEASE_LOST:
                self.cancelled = reason
            if self._event is not None:
                self._event.set()
        # A task cancelled before its first step would end without a word; one that starts looks at the reason itself.
        task = self.task
        if task is not None and self.started_at is not None and not self.ended:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def expire(self, now: float) -> None:
        """Its deadline may have passed unseen: the process was paused, or the timer has not looked yet."""
        if self.deadline is not None and self.deadline <= now:
            with _event_lock:
                self.cancelled = self.cancelled or TIMEOUT


Finished = tuple[RunningJob, Outcome | None]
"""A result of None was written by the handler's own transaction."""


class RunningJobs:
    """The jobs held by this process, and the results that wait to be written. Shared by all threads of a worker."""

    def __init__(self, on_done: Callable[[Sequence[Finished]], None] | None = None) -> None:
        self._on_done = on_done
        self._held: dict[RunningJob, None] = {}
        self.finished: deque[Finished] = deque()
        self.timed_out: deque[RunningJob] = deque()
        self.wake = Bell()
        self.waiting = False
        """Whether the loop sleeps. Setting the event costs a system call: a busy loop looks by itself."""
        self.left: deque[Finished] = deque()
        self.passed_over: deque[tuple[RunningJob, Outcome]] = deque()
        """What the writer leaves to the loop: results that are not its own, and those that it could not write."""
        self.freed: deque[str] = deque()
        """Keys of jobs that the writer has completed: the loop follows their lines."""
        self.written = 0
        """How many results the writer has written."""
        self.writer_ready = False
        self.writer_waits = False
        self.gathering = False
        """Whether results come so fast that there will be many in a moment: the loop is not called for the first ones,
        and comes by itself."""
        self.gathered = threading.Event()
        """Wakes the writer."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, *jobs: RunningJob) -> None:
        self._held.update(dict.fromkeys(jobs))

    def remove(self, finished: Sequence[Finished]) -> None:
        if self._on_done is not None:
            self._on_done(finished)  # first: a shutdown waits until nothing is held
        for job, _ in finished:
            self._held.pop(job, None)

    def snapshot(self) -> list[RunningJob]:
        return list(self._held)

    def locks(self) -> set[tuple[str, str]]:
        """Ids and lock tokens."""
        return {(job.id, job.lock_token) for job in self.snapshot()}

    def finish(self, job: RunningJob, outcome: Outcome | None) -> None:
        """Called by the handler's thread. What gathers while a write is on its way is the next batch."""
        job.ended = True
        # Its traceback holds the frames of the handler with all their locals, and one of ours that holds the job:
        # together they would stay until the garbage collector comes, which counts objects and not their size.
        job.error = None
        self.finished.append((job, outcome))
        if self.many_gathered:
            if self.writer_waits:
                self.call_writer()
        elif self.waiting and not self.gathering:
            self.call_loop()

    @property
    def many_gathered(self) -> bool:
        """Whether the results that wait are the writer's."""
        return self.writer_ready and len(self.finished) >= MANY

    @property
    def awaits_loop(self) -> bool:
        """Whether there is something that the loop is to write."""
        return bool(self.left or (self.finished and not (self.gathering or self.many_gathered)))

    def call_loop(self) -> None:
        self.waiting = False  # once is enough, and it may take a while until the loop gets to run
        self.wake.set()

    def call_writer(self) -> None:
        self.writer_waits = False
        self.gathered.set()

    def mark_timed_out(self, job: RunningJob) -> None:
        self.timed_out.append(job)
        self.wake.set()

    def take_finished(self) -> list[Finished]:
        """What is to be written now, by the one who asks."""
        return _taken(self.finished)

    def take_left(self) -> list[Finished]:
        """What the writer leaves to the loop."""
        return _taken(self.left)

    def take_for_loop(self) -> list[Finished]:
        """What the writer leaves to the loop; and all that waits, unless that is for the writer."""
        left = self.take_left()
        if not self.many_gathered:
            return left + self.take_finished()
        self.call_writer()
        return left

    def take_passed_over(self) -> list[tuple[RunningJob, Outcome]]:
        return _taken(self.passed_over)

    def take_freed(self) -> list[str]:
        return _taken(self.freed)

    def take_timed_out(self) -> list[RunningJob]:
        """Each once: a turn that fails puts back what may wait already, marked apart and in vain."""
        return list(dict.fromkeys(_taken(self.timed_out)))

    def put_back(self, finished: Sequence[Finished], timed_out: Sequence[RunningJob]) -> None:
        """What could not be written waits for the next turn, in its old place."""
        self.finished.extendleft(reversed(finished))
        self.timed_out.extendleft(reversed(timed_out))


def _taken(waiting: deque[Waiting]) -> list[Waiting]:
    """What waits now, and not what is added meanwhile. Loop and writer may take from one deque at the same time."""
    taken: list[Waiting] = []
    try:
        for _ in range(len(waiting)):
            taken.append(waiting.popleft())  # noqa: PERF401  # what was taken before the error must stay
    except IndexError:
        """The other one was faster, and has the rest."""
    return taken
