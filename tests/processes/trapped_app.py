"""Runs a worker again and again: `python trapped_app.py URL`. Each time SIGTERM lands at another line of what the main
thread does while it waits in `run`, and again at another line of what it does while it waits for the handler to end."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

import sqlalchemy as sa

from sqlane_sa import JobContext, Queue, Worker
from sqlane_sa.worker import life

LINES = 16
"""More than one round of either wait, also of one that waits by an event."""

queue = Queue()
runs = threading.Event()


@queue.job("held")
def held(payload: Any, ctx: JobContext) -> None:
    runs.set()
    ctx.cancelled.wait()


class Trap:
    """A tracer of the main thread. Signals raised at a line are handled before the next one."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._left = line
        self._waits = ["wait", "_wait_until"]
        """Where the signals land."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Trap:
        if event == "line" and self._waits and runs.is_set() and is_within(frame, self._waits[0]):
            self._left -= 1
            if self._left < 0:
                self._left = self._line
                print(f"SIGTERM at {frame.f_code.co_qualname}:{frame.f_lineno}", flush=True)
                del self._waits[0]
                signal.raise_signal(signal.SIGTERM)
        return self


def is_within(frame: FrameType | None, function: str) -> bool:
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


if __name__ == "__main__":
    life.SIGNAL_LOOK = 0.01  # it goes round often
    engine = sa.create_engine(sys.argv[1])
    for line in range(LINES):
        runs.clear()
        with engine.begin() as conn:
            queue.enqueue(conn, "held")
        sys.settrace(Trap(line))
        Worker(engine, queue, shutdown_timeout=3600).run()
        sys.settrace(None)
