"""Signals: SIGTERM and SIGINT stop a worker, once gently, twice at once, thrice for good."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger("sqlane_sa.worker")


@contextmanager
def stop_signals(stop: Callable[[], None], hurry: Callable[[], None]) -> Iterator[None]:
    """Inside, the first signal calls `stop`, the second `hurry`, the third ends the process.

    The handlers found are put back afterwards, and count in a child that was forked inside: it is no worker, and
    somebody may want to end it. Python runs signal handlers in the main thread only: elsewhere this does nothing, and
    whoever started the worker stops it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received, process = 0, os.getpid()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if os.getpid() != process:
            _as_before(before)
            signal.raise_signal(number)
            return
        received += 1
        if received == 1:
            stop()
        elif received == 2:
            hurry()
        else:
            os._exit(128 + number)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
        yield
    finally:
        _as_before(before)


def _as_before(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        # None: set by a library outside Python, which cannot be put back.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
