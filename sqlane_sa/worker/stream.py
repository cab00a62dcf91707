"""Stream: how often wake-ups come; and the looks of a worker that needs none, because jobs keep coming."""

from __future__ import annotations

import math
import random

WINDOW = 0.1
MANY = 10
"""So many wake-ups within a window (seconds), and the worker signs off: a NOTIFY takes a lock of the whole database."""
FIRST_PAUSE = 0.005
LAST_PAUSE = 0.1
"""Seconds between two looks; the longer nothing came, the longer."""
SHARE = 4
"""A look that takes long, on a busy server, may take a fifth of the time."""
FIRST_PATIENCE = 0.1
LAST_PATIENCE = 1.6
"""Seconds of looks that find nothing, until the worker waits for wake-ups again. Doubled each time that no look has
found anything at all: other workers are faster, or somebody notifies for nothing."""


class Stream:
    """Times in monotonic seconds; all of it is the loop's own."""

    def __init__(self) -> None:
        self._began = -math.inf
        self._heard = 0
        self._patience = FIRST_PATIENCE
        self._found = False
        self._last = 0.0
        self.look_at = math.inf
        """When to look; infinite: when woken."""
        self.ends_at = 0.0
        """When to wait for wake-ups again."""

    def heard(self, wake_ups: int, now: float) -> None:
        if now - self._began > WINDOW:
            self._began, self._heard = now, 0
        self._heard += wake_ups

    def flows(self, now: float) -> bool:
        """Whether wake-ups come so often that to do without them costs less."""
        return self._heard >= MANY and now - self._began <= WINDOW

    def begin(self, now: float) -> None:
        """From now on nobody wakes the worker."""
        self._heard = 0
        self._found = False
        self._last = now
        self.look_at = now + FIRST_PAUSE
        self.ends_at = now + self._patience

    def looked(self, began: float, now: float, found: bool) -> None:
        if found:
            self._found = True
            self._last = now
            self._patience = FIRST_PATIENCE
            self.ends_at = now + self._patience
        pause = max(FIRST_PAUSE, SHARE * (now - began), (now - self._last) / 2)
        self.look_at = now + min(pause, LAST_PAUSE) * random.uniform(0.8, 1.0)

    def end(self) -> None:
        """From now on the worker is woken."""
        if self.look_at < math.inf and not self._found:
            self._patience = min(2 * self._patience, LAST_PATIENCE)
        self.look_at = math.inf
        self.ends_at = 0.0
