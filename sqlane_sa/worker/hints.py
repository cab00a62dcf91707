"""Hints: wake-ups that were received and not followed yet, and how many of them are worth a look."""

from __future__ import annotations

import math
import time

FIRST_PAUSE = 0.002
LAST_PAUSE = 0.1


class Hints:
    """A hint is followed at once while hints lead to jobs. After each that did not, the next has to wait twice as
    long, up to 0.1 s: whoever may send notifications, however many, costs ten looks a second.

    Times in monotonic seconds. Any thread may call `note`; the rest is the loop's.
    """

    def __init__(self) -> None:
        self.noted = False
        self.closed_until = 0.0
        self._pause = FIRST_PAUSE

    def note(self) -> bool:
        """Remember a hint; whether to follow it now."""
        # First the note, then the time: a loop that saw no note, and went to sleep after the pause, is woken.
        self.noted = True
        return time.monotonic() >= self.closed_until

    def take(self, now: float) -> bool:
        """Whether there is a hint to follow now; it is used up."""
        taken = self.noted and now >= self.closed_until
        if taken:
            self.noted = False
        return taken

    def followed(self, now: float, found: bool) -> None:
        """What came of it."""
        if found:
            self._pause = FIRST_PAUSE
            self.closed_until = 0.0
        else:
            self.closed_until = now + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)

    def next_look(self, now: float) -> float:
        """When the hint that waits, or one that comes in the meantime, may be followed; infinite: at once."""
        return self.closed_until if self.noted or self.closed_until > now else math.inf
