"""How a worker follows its wake-ups, for tests of its promptness that ask no clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sqlane_sa import Worker
from sqlane_sa.worker import sleep


class Followed:
    """Of a worker that runs: whether each turn that could follow a wake-up did, and whether what it started was found
    so. Without the looks after falling asleep (`only_wake_ups`), and with polls of hours, nothing else finds a job."""

    def __init__(self, worker: Worker) -> None:
        assert worker._parts is not None
        self._loop: Any = worker._parts.loop
        self._turn, self._start = self._loop.turn, self._loop._start
        self.turns: list[bool] = []
        self.starts: list[bool] = []
        self._loop._start = self._note_start
        self._loop.turn = self._note_turn

    @staticmethod
    def only_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the worker starts."""
        monkeypatch.setattr(sleep, "LOOKS", ())

    def _note_turn(self) -> bool:
        # Other threads may note a hint at any time; only the loop's own uses one up, or closes them for a while.
        hints = self._loop._hints
        can_follow = hints.noted and hints.closed_until <= time.monotonic()
        did: bool = self._turn()
        if can_follow:
            self.turns.append(self._loop._supposed)
        return did

    def _note_start(self, claimed: Any, began: float) -> None:
        if claimed:
            self.starts.append(self._loop._supposed)
        self._start(claimed, began)

    def check(self) -> None:
        """Each wake-up was followed by the first turn after it, and that is how all was found that was started."""
        assert self.starts
        assert all(self.starts)
        assert all(self.turns)
