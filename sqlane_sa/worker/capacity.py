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
        self._ended = 0
        self._worked = 0.0

    def measure(self, ended: int, worked: float, turn: float) -> None:
        """After a claim: `ended` jobs so far, in `worked` seconds in which there was something to do; and the seconds
        that a turn takes. What counts is how fast jobs end while there are some: handlers that wait for the claims are
        not slow."""
        ended, self._ended = ended - self._ended, ended
        worked, self._worked = worked - self._worked, worked
        # Twice what ends during a turn: handlers that keep up with that bring more with the next one.
        soon = min(2.0 * ended * turn / max(worked, 1e-6), MAX_AHEAD)
        # Up at once, down by halves: one short turn is no sign that the handlers have slowed down.
        self._ahead = soon if soon > self._ahead else (self._ahead + soon) / 2

    def handed_back(self) -> None:
        """What was claimed ahead found no slots: until jobs end fast again, claims are for free slots alone. Else they
        would bring the same jobs back at once."""
        self._ahead = 0.0

    @property
    def refill_at(self) -> int:
        """So many jobs that run or wait here, or fewer, call for the next claim: refilled by halves, so that claims are
        batches. Free slots always do."""
        capacity = self._concurrency + int(self._ahead)
        return max(capacity // 2, self._concurrency - 1)

    def ends_within_a_turn(self, jobs: int) -> bool:
        """Whether so many of those that are here end in the time of a turn."""
        return self._ahead >= 2 * jobs

    def want(self, active: int) -> int:
        """Rows to claim while `active` jobs run or wait here."""
        return self._concurrency + int(self._ahead) - active if active <= self.refill_at else 0
