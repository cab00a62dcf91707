"""Sleep: what the database knows of whether this worker waits for wake-ups."""

from __future__ import annotations

import math
import time

from sqlalchemy import Connection

from sqlane_sa import store
from sqlane_sa.schema import Tables
from sqlane_sa.values.ids import new_id
from sqlane_sa.worker.stream import Stream

DURATION = 60.0
"""Seconds that the word of a sleeping worker counts: one that was killed is notified no longer than that."""
REFRESH = 20.0
LOOKS = (0.02, 0.1, 1.0)
"""Seconds after which a worker that has fallen asleep looks again: an enqueue that was on its way at that moment saw
nobody to wake, and its commit may come after the first look."""


class Sleep:
    """Falls asleep by a row that enqueues look for; said again every 20 s. While wake-ups come in a stream the worker
    signs off instead, and looks by itself."""

    def __init__(self, tables: Tables, worker_id: str, wakeups: bool) -> None:
        self._tables = tables
        # Each has a row of its own, whatever name it was given: workers of one name (made before a fork and started in
        # each child, or named after their machine) would sign each other off.
        self._sleeper = f"{worker_id}:{new_id()}"
        self._until = 0.0
        self._looks: list[float] = []
        self.stream = Stream()
        self.wakeups = wakeups
        """Whether they are wanted, and arrive."""

    @property
    def asleep(self) -> bool:
        """Whether the database says so."""
        return self._until > 0

    @property
    def refresh_at(self) -> float:
        """When to say it (again), in monotonic seconds."""
        if not self.wakeups:
            return math.inf
        return self._until - DURATION + REFRESH if self.asleep else self.stream.ends_at

    @property
    def streaming(self) -> bool:
        """Whether jobs keep coming, and the worker looks by itself instead of being woken."""
        return self.wakeups and self.stream.look_at < math.inf

    @property
    def look_at(self) -> float:
        """When to look without a wake-up, in monotonic seconds; infinite when there is no need."""
        return min(self._looks[0] if self._looks else math.inf, self.stream.look_at if self.wakeups else math.inf)

    def looked(self, began: float, now: float, found: bool) -> None:
        """A look that was due is done; whether jobs were started."""
        self._looks = [at for at in self._looks if at > began]
        if self.streaming:
            self.stream.looked(began, now, found)

    def fall(self, conn: Connection) -> None:
        """Say that the worker waits."""
        store.fall_asleep(conn, self._tables, worker_id=self._sleeper, duration=DURATION)

    def fallen(self, since: float) -> bool:
        """It is committed, and counts `since` then (monotonic seconds); whether it is news, and calls for a look."""
        news = self._until <= since
        self._until = since + DURATION
        if news:
            self._looks = [since + pause for pause in LOOKS]
        self.stream.end()
        return news

    def awake(self, conn: Connection) -> None:
        store.awake(conn, self._tables, worker_id=self._sleeper)
        self._until = 0.0
        self._looks = []
        now = time.monotonic()
        if self.stream.flows(now):
            self.stream.begin(now)
