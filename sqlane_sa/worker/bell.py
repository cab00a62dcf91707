"""Bell: an event that a thread can wait for together with a socket."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

LONGEST = 86_400.0
"""Seconds of a wait: poll takes 24 days of milliseconds at most, and to return without a reason is allowed."""


class Bell:
    """`set`, `clear` and `is_set` as of `threading.Event`. One thread waits; any may set it.

    The pair of sockets is made when somebody first waits, and used only while somebody does: a busy thread looks at
    the flag, and to set it costs no system call.
    """

    def __init__(self) -> None:
        self._rung = False
        self._waited_for = False
        self._pair: tuple[socket.socket, socket.socket] | None = None

    def set(self) -> None:
        # First the flag, then the look at who waits; who waits does it the other way round.
        self._rung = True
        pair = self._pair
        if self._waited_for and pair:
            with suppress(OSError):  # closed, or full of what nobody has read yet
                pair[1].send(b".")

    def clear(self) -> None:
        self._rung = False

    def is_set(self) -> bool:
        return self._rung

    def wait(self, seconds: float, file: int | None = None) -> bool:
        """Until it is set, `file` (a number) can be read or the time is over; whether `file` can be read."""
        reader, _ = pair = self._pair or _new_pair()
        self._pair = pair
        self._waited_for = True
        try:
            if self._rung:
                return False
            # Not select.select, which ends at file number 1023. What poll waits for may be closed meanwhile, and its
            # number be another file's.
            poll = select.poll()
            poll.register(reader, select.POLLIN)
            if file is not None:
                poll.register(file, select.POLLIN)
            ready = [number for number, _ in poll.poll(1000 * min(max(0.0, seconds), LONGEST))]
        finally:
            self._waited_for = False
        if reader.fileno() in ready:
            with suppress(BlockingIOError):
                reader.recv(4096)
        return file in ready

    def close(self) -> None:
        """Once nobody waits any more."""
        pair, self._pair = self._pair, None
        for each in pair or ():
            each.close()


def _new_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
    return pair
