"""How a handler ends: what it may raise to steer its job, and the value each end becomes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlane_sa.values.duration import seconds
from sqlane_sa.values.errors import InvalidJobError


class Signal(Exception):
    """What a handler raises to say how its job goes on: `Retry`, `Snooze` or `Discard`."""


class Retry(Signal):
    """Try again after `delay` seconds (None: as the backoff says); it counts as an attempt."""

    def __init__(self, delay: float | timedelta | None = None) -> None:
        self.delay = None if delay is None else _delay(delay)
        super().__init__(self.delay)

    def __str__(self) -> str:
        return "the handler asked for a retry" + (f" in {self.delay:g} s" if self.delay is not None else "")


class Snooze(Signal):
    """Put the job back for `delay` seconds; no attempt is used."""

    def __init__(self, delay: float | timedelta) -> None:
        self.delay = _delay(delay)
        super().__init__(self.delay)

    def __str__(self) -> str:
        return f"the handler put the job back for {self.delay:g} s"


class Discard(Signal):
    """Fail the job for good now, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return str(self.reason) or "the handler discarded the job"


def _delay(value: object) -> float:
    return seconds(value, "delay", error=_invalid)


def _invalid(message: str, option: str, value: object) -> InvalidJobError:
    return InvalidJobError(message, place=option, value=value)


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Retried:
    """The attempt failed and another follows after `delay` seconds; its keys stay held for `linger` seconds."""

    delay: float
    error: dict[str, Any]
    linger: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed for good; its keys stay held for `linger` seconds."""

    error: dict[str, Any]
    linger: float | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """Back to pending after `delay` seconds without an attempt used; its keys stay held for `linger` seconds."""

    delay: float | None = 0.0
    linger: float | None = None


Outcome = Completed | Retried | Failed | Released
