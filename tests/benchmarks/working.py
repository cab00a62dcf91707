"""Worker processes of a peer, and what they report while they work."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.benchmarks.ground import cpu_seconds
from tests.benchmarks.peers import Peer, complaints
from tests.benchmarks.pressure.figures import memory_mb

TICK = 0.01
START_PATIENCE = 300.0
"""Seconds: sixty-four processes on a small machine take their time."""


class Process:
    """One worker. `started` in epoch seconds by its own clock; `reports` are (when, handlers run so far)."""

    def __init__(self, peer: Peer, dsn: str, *mode: str) -> None:
        self._process = peer.start(dsn, *mode)
        self.started: float | None = None
        self.reports: list[tuple[float, int]] = []
        self.latencies: list[tuple[int, float]] = []
        self._cpu_before = 0.0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def done(self) -> int:
        return self.reports[-1][1] if self.reports else 0

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def cpu(self) -> float:
        """Seconds since it said that it starts."""
        return cpu_seconds(self._process.pid) - self._cpu_before

    @property
    def memory(self) -> float:
        return memory_mb(self._process.pid)

    def kill(self) -> None:
        """At once: a worker that shuts down in order would go on working."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self._note(json.loads(line))

    def _note(self, said: dict[str, Any]) -> None:
        if "start" in said:
            self._cpu_before = cpu_seconds(self._process.pid)
            self.started = said["start"]
        if "n" in said:
            self.latencies += [(number, at) for number, at in said.get("lat", ())]
            self.reports.append((time.time(), said["n"]))


class Crew(list[Process]):
    """Some workers of one database."""

    @property
    def done(self) -> int:
        return sum(process.done for process in self)

    def look(self) -> int:
        """Handlers run so far, after a moment. Raises RuntimeError when one has died."""
        time.sleep(TICK)
        if not all(process.alive for process in self):
            raise RuntimeError(f"a worker ended: {complaints()}")
        return self.done

    def wait_for_start(self) -> float:
        """When the first began."""
        deadline = time.monotonic() + START_PATIENCE
        while not all(process.started for process in self):
            if time.monotonic() > deadline:
                raise RuntimeError("a worker did not start")
            self.look()
        return min(process.started or 0 for process in self)

    def curve(self) -> list[tuple[float, int]]:
        """(when, handlers run so far by all), in order."""
        latest = dict.fromkeys(map(id, self), 0)
        together = []
        for at, place, count in sorted((at, id(one), count) for one in self for at, count in one.reports):
            latest[place] = count
            together.append((at, sum(latest.values())))
        return together


@contextmanager
def crew(peer: Peer, dsn: str, size: int = 1, *mode: str) -> Iterator[Crew]:
    """Started within the block, and gone after it."""
    working = Crew()
    try:
        for _ in range(size):
            working.append(Process(peer, dsn, *mode))
        yield working
    finally:
        for process in working:
            process.kill()
