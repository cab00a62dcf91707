"""Looks: when to look for due jobs next. Times in monotonic seconds; all of it is the loop's own."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence

from sqlane_sa.store import Lane
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker.lanes import Lanes, Place

Share = tuple[str, int, int]
"""Name, priority and most rows of a claim."""

BUSY_PROBE_INTERVAL = 0.05
KEYED_PAUSE = 0.02
LOW_WATER_INTERVAL = 1.0
"""Seconds between claims from the start of a lane with a backlog."""
MAX_SHARE = 20
"""A look that takes long, past what cannot be vacuumed, may take a twentieth of the time."""


class Looks:
    """A probe tells which names have due jobs; claims tell which have no more. `probe_at` and `keyed_at` are the next
    times for a probe and for a look at the jobs with keys."""

    def __init__(self, names: Sequence[str], poll_interval: float) -> None:
        self._lanes = Lanes(names)
        self._poll_interval = poll_interval
        self.probe_at = self.keyed_at = 0.0
        # When the last results were taken, and when the last looks began.
        self._ended = self._probed = self._looked_keyed = 0.0
        self._put_off = 0.0

    def at_once(self) -> None:
        self.probe_at = self.keyed_at = 0.0

    def not_before(self, at: float) -> None:
        """Put the next probe off, once, unless a lane is known to be due."""
        if self._put_off <= self._probed:
            self._put_off = at
        if not self._lanes.is_due(time.monotonic()):
            self.probe_at = max(self.probe_at, self._put_off)

    def again(self) -> None:
        """What the last look saw does not count: it failed."""
        self.at_once()
        self._probed = 0.0

    def suppose_due(self, now: float) -> None:
        """After a wake-up: the lanes that had jobs lately are the ones to try."""
        self.at_once()
        self._lanes.suppose_due(now)

    def ended(self, now: float) -> None:
        """A handler has ended, and may have enqueued something."""
        self._ended = now

    def share(self, want: int) -> list[Share]:
        """Which due lanes without keys to claim from: at most `want` rows in all."""
        return self._lanes.share(want, time.monotonic())

    def probed(self, began: float, lanes: Iterable[Lane]) -> None:
        """What a probe found."""
        now = time.monotonic()
        self._probed = began
        self._lanes.refresh(lanes, now)
        busy = max(BUSY_PROBE_INTERVAL, MAX_SHARE * (now - began))
        pause = busy if self._lanes.is_due(now) else self._poll_interval * random.uniform(0.9, 1.0)
        self.probe_at = now + min(pause, self._poll_interval)

    def low_water_marks(self) -> dict[tuple[str, int], Place]:
        """Where the next claim may begin, for some lanes (name, priority)."""
        return self._lanes.low_water_marks(time.monotonic())

    def claimed(
        self, shares: Sequence[Share], claimed: Sequence[ClaimedJob], began: float, *, supposed: bool, marked: bool
    ) -> None:
        """What a claim that began then got of its shares: `supposed` when a wake-up, and no probe, had called for it;
        `marked` when it began at the marks."""
        now = time.monotonic()
        found: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], ClaimedJob] = {}
        for job in claimed:
            lane = job.name, job.priority
            found[lane] = found.get(lane, 0) + 1
            last[lane] = job
        for name, priority, limit in shares:
            end = last.get((name, priority))
            if end:
                self._lanes.claimed(name, priority)
            if found.get((name, priority), 0) < limit:
                self._lanes.exhausted(name, priority)
            elif end and marked:
                until = now + max(LOW_WATER_INTERVAL, MAX_SHARE * (now - began))
                self._lanes.set_low_water_mark(name, priority, (end.run_at, end.id), until)
        if not self._lanes.is_due(now):
            # Due rows that cannot be claimed are locked by somebody: to look again at once would be a busy wait.
            self.probe_at = 0.0 if claimed or supposed else now + self._poll_interval

    def is_due(self, now: float) -> bool:
        """Whether a lane without keys is due, as far as is known."""
        return self._lanes.is_due(now)

    def keyed_names(self, now: float) -> set[str]:
        """The names with due jobs that have keys. `keyed_at` is when to look at all of them."""
        return self._lanes.keyed_names(now)

    def looked_keyed(self, began: float) -> None:
        self._looked_keyed = began

    def rest_keyed(self, began: float, next_ms: int | None, asleep: bool) -> None:
        """The jobs with keys that are left wait for them. A sleeping worker is woken when one is freed; lingers end
        and jobs come due by themselves; a busy one looks again, but spends little of its time on it."""
        now = time.monotonic()
        pause = self._poll_interval if asleep else max(KEYED_PAUSE, 5 * (now - began))
        if next_ms is not None:
            pause = min(pause, next_ms / 1000)
        self.keyed_at = now + min(pause, self._poll_interval)

    def saw_the_end(self, now: float) -> bool:
        """Whether the last looks began after the last handler ended, and so saw what it may have enqueued."""
        looks = [self._probed] + ([self._looked_keyed] if self._lanes.keyed_names(now) else [])
        return min(looks) >= self._ended

    def next(self, now: float) -> float:
        looks = [self.probe_at]
        next_due = self._lanes.next_due(now)
        if next_due is not None:
            looks.append(next_due)
        if self._lanes.keyed_names(now):
            looks.append(self.keyed_at)
        return min(looks)
