"""Capacity: how many jobs to claim now."""

from __future__ import annotations

MAX_AHEAD = 1000
"""Jobs claimed beyond the free slots, at most."""


class Capacity:
    """Free slots, plus what will come free while one more turn is on its way.

    Millisecond jobs so stream without gaps, and hour-long ones are claimed only for slots that are free: with nothing
    finishing, nothing is claimed ahead.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._ahead = 0.0
        self._last = 0.0

    def measure(self, finished: int, before: float, after: float) -> None:
        """A turn from `before` to `after` (monotonic seconds) wrote `finished` results."""
        since_last = max(after - self._last, 1e-6)
        self._last = after
        # Twice what finishes during a turn: handlers that keep up with that bring more with the next one.
        soon = min(2.0 * finished * min(1.0, (after - before) / since_last), MAX_AHEAD)
        # Up at once, down by halves: one short turn is no sign that the handlers have slowed down.
        self._ahead = soon if soon > self._ahead else (self._ahead + soon) / 2

    def want(self, active: int) -> int:
        """Rows to claim while `active` jobs run or wait here. Refilled by halves, so that claims are batches."""
        capacity = self._concurrency + int(self._ahead)
        want = capacity - active
        if active >= self._concurrency and 2 * want < capacity:
            return 0
        return max(0, want)
