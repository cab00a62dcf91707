"""Capacity: how many jobs to claim now."""

from __future__ import annotations

MAX_AHEAD = 1000
"""Jobs claimed beyond the free slots, at most."""

_WEIGHT = 0.5


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
        """A turn from `before` to `after` (monotonic seconds) took `finished` results with it."""
        elapsed = max(after - self._last, 1e-6)
        self._last = after
        # Twice what finished for each turn's length: when handlers keep up with that, the next turn brings more.
        soon = 2.0 * finished * min(1.0, (after - before) / elapsed)
        self._ahead += (
            _WEIGHT * (min(soon, MAX_AHEAD) - self._ahead) if soon < self._ahead else min(soon, MAX_AHEAD) - self._ahead
        )

    def want(self, active: int) -> int:
        """Rows to claim while `active` jobs run or wait here. Refilled by halves, so that claims are batches."""
        capacity = self._concurrency + int(self._ahead)
        want = capacity - active
        if active >= self._concurrency and 2 * want < capacity:
            return 0
        return max(0, want)
