"""How much time a machine with other work withholds from who would go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PAUSE = 0.01
"""Seconds between two beats: about as long as a step of a worker and its server takes."""


class Beat:
    """A thread that asks to be woken after each `PAUSE`, and adds up how much later it was.

    Who waits for a lease or a poll loses less than that, for the beat never waits for anything else: what it finds
    missing is the most that the machine can have cost a chain of such steps, and hardly anything on a quiet one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(self._stop.wait,), name="beat", daemon=True)
        self.withheld = 0.0
        """Seconds so far."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> float:
        """The seconds withheld in all."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.withheld

    def run(self, pause: Callable[[float], bool]) -> None:
        """Until `pause(seconds)` says that it was stopped."""
        stopped = False
        while not stopped:
            began = self._clock()
            stopped = pause(PAUSE)
            self.withheld += max(0.0, self._clock() - began - PAUSE)


def processor_waits(pids: Iterable[int | None]) -> float:
    """Seconds that the threads of these processes have been ready to run and had no processor; 0 where the system does
    not tell."""
    return sum(_wait_of(stat) for pid in pids for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _wait_of(stat: Path) -> float:
    try:
        return int(stat.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0  # it has just ended
