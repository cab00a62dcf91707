"""Ctrl-C and its like end the demo in order: everything it made is removed first."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came: `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


_pending: Interrupted | None = None
_held = False


def check() -> None:
    """Raise `Interrupted` once more if a signal came: Python drops what is raised while it runs a finalizer."""
    if _pending is not None:
        raise _pending


@contextmanager
def held() -> Iterator[None]:
    """Within, a signal is only noted, and raised at the end: what is half made could not be removed."""
    global _held
    _held = True
    try:
        yield
    except Exception as error:
        # Ctrl-C reaches the programs that are run meanwhile too.
        if _pending is not None:
            raise _pending from error
        raise
    finally:
        _held = False
    check()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first signal raises `Interrupted` in the main thread; later ones do not disturb the cleaning up."""

    def handle(number: int, frame: FrameType | None) -> None:
        global _pending
        for each in NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        _pending = Interrupted(number)
        if not _held:
            raise _pending

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Interrupted):
            sys.__unraisablehook__(unraisable)

    before = [(number, signal.signal(number, handle)) for number in NUMBERS]
    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = sys.__unraisablehook__
        for number, handler in before:
            signal.signal(number, handler)
