"""New ids: ULIDs that strictly increase within a process, whatever its threads and the system clock do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ulid import ULIDGenerator

_TIME_BITS = 48
_RANDOM_BITS = 80
_TAIL_BITS = 20
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_PAIR_BITS = 10
_HEAD_SHIFTS = range(_TIME_BITS + _RANDOM_BITS - 8, _TAIL_BITS - 1, -_PAIR_BITS)
"""A text has 130 bits, two of them before the first of the value."""


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

    def go_on(self, timestamp: int) -> int | None:
        """The first of `count` values right after the last run, while the millisecond and its values last."""
        first = self._next
        if timestamp != self._ms or first + self.count > 1 << _RANDOM_BITS:
            return None
        self._next = first + self.count
        return timestamp << _RANDOM_BITS | first

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

    @cached_property
    def _generator(self) -> ULIDGenerator:
        from ulid import ULIDGenerator  # takes longer to load than all of this package's values

        return ULIDGenerator(clock=self._clock, policy=self._runs)

    def take(self, count: int) -> int:
        """The first of `count` consecutive values that are now the caller's."""
        with self._lock:
            self._runs.count = count
            while True:
                following = self._runs.go_on(self._clock())
                if following is not None:
                    return following
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
        head = "".join([_PAIRS[first >> shift & 1023] for shift in _HEAD_SHIFTS])
        texts += [head + _PAIRS[tail >> _PAIR_BITS] + _PAIRS[tail & 1023] for tail in range(low, low + size)]
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
