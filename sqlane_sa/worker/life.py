"""One run of a worker, from its start to the end of its shutdown: who has charge of it, and what it is told."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

from sqlane_sa.values.errors import WorkerError

SIGNAL_LOOK = 0.5


class Flag:
    """An event that a signal handler may set. `threading.Event` has a lock: a signal that lands while the main thread
    waits for the event may find it held by that very wait, and `set` would wait for it for ever."""

    def __init__(self) -> None:
        self._is_set = False
        self._news: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._news.put(None)

    def wait(self) -> None:
        while not self._is_set:
            # With a timeout: a signal that the system hands to another thread does not interrupt this wait.
            with suppress(Empty):
                self._news.get(timeout=SIGNAL_LOOK)
        self._news.put(None)  # for the next one that waits


class Life:
    """`wake` ends the wait of `run`, `hurry` that for handlers, and `over` that of all who have called `stop`."""

    def __init__(self) -> None:
        self.wake = Flag()
        self.hurry = Flag()
        self.over = Flag()
        self.asked = False
        """Whether somebody has called `stop`."""
        self.failure: str | None = None
        self._charge: dict[str, int] = {}
        self._process = os.getpid()

    @property
    def elsewhere(self) -> bool:
        """Whether it is the life of a worker in the process that this one was forked from. Its threads are not here,
        and it is neither running here nor this process's to end."""
        return os.getpid() != self._process

    def ask(self) -> None:
        self.asked = True
        self.wake.set()

    def take_charge(self) -> bool:
        """One thread at a time starts, runs or ends it; whether that is the caller from now on.

        In one step and without a lock: a signal handler that calls `stop` may interrupt the same thread here.
        """
        if self.in_charge:
            return False
        me = threading.get_ident()
        return self._charge.setdefault("thread", me) == me and not self.over.is_set()

    @property
    def in_charge(self) -> bool:
        """Whether the calling thread is."""
        return self._charge.get("thread") == threading.get_ident()

    @property
    def taken(self) -> bool:
        return bool(self._charge)

    def give_back(self) -> None:
        self._charge.clear()

    def raise_failure(self) -> None:
        if self.failure:
            raise WorkerError(self.failure)


def in_worker_thread() -> bool:
    """Whether the caller is a handler, or another thread that a shutdown waits for."""
    return threading.current_thread().name.startswith("sqlane-")
