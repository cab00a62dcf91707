"""New ids: ULIDs that strictly increase within a process, whatever its threads and the system clock do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ulid import ULID, ULIDGenerator
from ulid.base32 import ENCODE

_RANDOM_BITS = 80
_TAIL_BITS = 20
_TAIL_CHARS = 4
_PAIRS = [a + b for a in ENCODE for b in ENCODE]


def new_id() -> str:
    """One new ULID, 26 characters, above every earlier one of this process."""
    return new_ids(1)[0]


def new_ids(n: int) -> list[str]:
    """`n` new ULIDs in increasing order, above every earlier one of this process."""
    return _texts(_source.take(n), n) if n > 0 else []


class _Runs:
    """A monotonicity policy that hands out `count` consecutive values at a time instead of one.

    A batch of thousands of ids is then one call of the generator, which costs about 10 us.
    """

    def __init__(self) -> None:
        self.count = 1
        self._ms = -1
        self._next = 0

    def resolve_randomness(self, timestamp: int, randomness_source: Callable[[int], bytes]) -> bytes:
        fresh = timestamp != self._ms
        first = int.from_bytes(randomness_source(timestamp), "big") if fresh else self._next
        if first + self.count > 1 << _RANDOM_BITS:
            raise OverflowError
        self._ms, self._next = timestamp, first + self.count
        return first.to_bytes(_RANDOM_BITS // 8, "big")


class _Source:
    """The one generator of a process, and the lock around its clock and its policy together."""

    def __init__(self, not_before_ms: int = 0) -> None:
        self.ms = not_before_ms
        self._lock = threading.Lock()
        self._runs = _Runs()
        self._generator = ULIDGenerator(clock=self._clock, policy=self._runs)

    def take(self, count: int) -> int:
        """The first of `count` consecutive values that are now the caller's."""
        with self._lock:
            self._runs.count = count
            while True:
                try:
                    return int(self._generator.generate())
                except OverflowError:  # the randomness of this millisecond is used up
                    self.ms += 1

    def _clock(self) -> int:
        """The system clock, held where it stood while it is behind."""
        self.ms = max(self.ms, time.time_ns() // 1_000_000)
        return self.ms


def _texts(first: int, count: int) -> list[str]:
    """The ULIDs of consecutive values: the last 4 of 26 characters change, the rest once in a million."""
    texts: list[str] = []
    while count > 0:
        low = first & ((1 << _TAIL_BITS) - 1)
        size = min(count, (1 << _TAIL_BITS) - low)
        head = str(ULID.from_int(first))[:-_TAIL_CHARS]
        texts += [head + _PAIRS[tail >> 10] + _PAIRS[tail & 1023] for tail in range(low, low + size)]
        first += size
        count -= size
    return texts


def _after_fork() -> None:
    # The child would go on with its parent's run of values, and its lock may be held by a thread it does not have.
    # From the next millisecond on, so that its ids are also above those it was forked with.
    global _source
    _source = _Source(_source.ms + 1)


_source = _Source()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
