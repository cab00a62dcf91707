"""Lines: mutex keys whose lines are worth a look: a job that held them has ended, or a walk found them free."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_KEYS = 10_000


class Lines:
    """A hint and no more: what is not here is found by the next look at everything. The loop's own."""

    def __init__(self) -> None:
        # Not a dict: to find its first key, that steps over all that were deleted before it.
        self._keys: OrderedDict[str, None] = OrderedDict()
        self.after_key = ""
        """Where the next walk from key to key begins, so that each gets its turn."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, keys: Iterable[str]) -> None:
        """In place of those that were added first, when there are too many."""
        for key in keys:
            self._keys[key] = None
        while len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)

    def take(self, n: int) -> list[str]:
        """The `n` that were added first. They are gone: a line that cannot go on now is worth another look when a key
        is freed."""
        taken = [key for key, _ in zip(self._keys, range(n), strict=False)]
        self.drop(taken)
        return taken

    def drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._keys.pop(key, None)

    def clear(self) -> None:
        self._keys.clear()
