"""A look at whether this process still has the files that it opened.

A handler, or a library of it, may close all that is open (`os.closerange`, as daemons do). The numbers are then given
to other files: an event loop sleeps for ever on a selector that is gone, and two connections share a socket. Nothing of
that says so by itself.
"""

from __future__ import annotations

import os


class Canary:
    """A file of our own that nobody has a reason to close."""

    def __init__(self) -> None:
        # One end of a pipe: no other file is the same one, whatever gets its number.
        self._number, other = os.pipe()
        os.close(other)
        self._closed = False
        self._known = self._found()

    @property
    def alive(self) -> bool:
        """Whether its number still stands for it, or we have closed it ourselves."""
        return self._closed or self._found() == self._known

    def close(self) -> None:
        # First the note: who looks in between must not take it for dead.
        closed, self._closed = self._closed, True
        if not closed and self._found() == self._known:
            os.close(self._number)

    def _found(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self._number)
        except OSError:
            return None
        return status.st_dev, status.st_ino
