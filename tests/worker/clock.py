"""A clock that goes on by hand, in place of the module `time`."""

from __future__ import annotations

import pytest


class Clock:
    """`monkeypatch.setattr(module, "time", clock)`, and `clock.now` is what the module takes for now."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def rules(self, monkeypatch: pytest.MonkeyPatch, *modules: object) -> Clock:
        for module in modules:
            monkeypatch.setattr(module, "time", self)
        return self
