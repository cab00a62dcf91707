"""Ctrl-C and its like end the demo in order: everything it made is removed first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came: `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first signal raises `Interrupted` in the main thread; later ones do not disturb the cleaning up."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = [(number, signal.signal(number, handle)) for number in NUMBERS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
