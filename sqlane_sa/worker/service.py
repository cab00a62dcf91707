"""The threads of a worker: each has one duty, and none dies silently."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

log = logging.getLogger("sqlane_sa.worker")

FIRST_BACKOFF = 0.1
LAST_BACKOFF = 5.0
REMINDER = 300.0
MAX_CRASHES = 10
"""So many errors in a row that are not the database's, and the worker gives up: the fault is in the code."""


class Outage:
    """Backs off with jitter while something fails, at most for `longest` seconds, and logs it once, and every 5 minutes
    while it lasts. `advice` is for whoever reads that it began."""

    def __init__(self, part: str, longest: float = math.inf, advice: str = "") -> None:
        self._part = part
        self._longest = longest
        self._advice = f"; {advice}" if advice else ""
        self._failures = 0
        self._began = self._said_at = 0.0

    def failed(self, error: BaseException) -> float:
        """Seconds to wait before the next try."""
        now = time.monotonic()
        if self._failures == 0:
            self._began = self._said_at = now
            log.warning("%s: %s; trying again until it works%s", self._part, first_line(error), self._advice)
        elif now - self._said_at > REMINDER:
            self._said_at = now
            log.warning("%s: still fails after %.0f min: %s", self._part, (now - self._began) / 60, first_line(error))
        self._failures += 1
        ceiling = min(FIRST_BACKOFF * 2.0 ** min(self._failures, 16), LAST_BACKOFF, self._longest)
        return ceiling * random.uniform(0.5, 1.0)

    def worked(self) -> None:
        if self._failures:
            tries = "one failed try" if self._failures == 1 else f"{self._failures} failed tries"
            log.warning("%s: works again after %.1f s and %s", self._part, time.monotonic() - self._began, tries)
        self._failures = 0


class Service:
    """A daemon thread that calls `run_once` until it is stopped, over errors of the database and of its own.

    `run_once` does one round of the duty and returns the seconds until the next; `wake` starts that at once. Where a
    round may have nothing to do, `successes` counts what tells that an outage is over.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], float],
        on_error: Callable[[], None],
        give_up: Callable[[str], None],
        successes: Callable[[], int] | None = None,
        longest_backoff: float = math.inf,
        advice: str = "",
    ) -> None:
        self.name = name
        self._successes = successes
        self._seen = 0
        self._run_once = run_once
        self._on_error = on_error
        self._give_up = give_up
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._outage = Outage(name, longest_backoff, advice)
        self._crashes = 0
        self._first_pause = 0.0
        self._thread = threading.Thread(target=self._run, name=f"sqlane-{name}", daemon=True)

    def start(self, after: Exception | None = None) -> None:
        """Start the thread; `after` an error with which its duty has failed already, it begins by backing off."""
        if after is not None:
            self._first_pause = self._failed(after)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._wake.wait(self._first_pause)
            while not self._stop.is_set():
                self._wake.clear()
                pause = self._round()
                if pause > 0 and not self._stop.is_set():
                    self._wake.wait(pause)
        finally:
            try:
                self._let_go()
            finally:
                if not self._stop.is_set():
                    self._give_up(f"the {self.name} ended")

    def _round(self) -> float:
        try:
            pause = self._run_once()
        except Exception as error:
            self._let_go()
            self._seen = self._successes() if self._successes else 0
            return self._failed(error)
        if self._successes is None or self._successes() > self._seen:
            self._outage.worked()
        self._crashes = 0
        return pause

    def _let_go(self) -> None:
        try:
            self._on_error()
        except Exception:  # a listener of the application's, mostly, on its pool's events
            log.exception("the %s could not let go of what it held", self.name)

    def _failed(self, error: Exception) -> float:
        if not isinstance(error, DBAPIError | OSError):
            self._crashes += 1
            log.exception("the %s failed; it goes on", self.name)
            if self._crashes >= MAX_CRASHES:
                self._give_up(f"the {self.name} failed {self._crashes} times in a row: {first_line(error)}")
        return self._outage.failed(error)


def first_line(error: BaseException) -> str:
    """Enough to know the error by; the rest of a driver's message may hold parameters."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:500]
