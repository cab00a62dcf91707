"""The delay before the next attempt: a `Backoff` or a user's function, and always a sane number."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlane_sa.values.duration import as_float, seconds
from sqlane_sa.values.errors import DefinitionError, shown

MAX_DELAY = 7 * 86400.0

logger = logging.getLogger("sqlane_sa")


def _number(value: object, option: str, low: float, high: float) -> float:
    number = as_float(value) if isinstance(value, (int, float)) else None
    if number is None or not low <= number <= high:
        message = f"{option}={shown(value)} must be a number from {low} to {high}"
        raise DefinitionError(message, option=option, value=value)
    return number


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Delays that grow with each attempt: `base * factor ** (attempt - 1)` seconds, at most `maximum`.

    `jitter` is the share, 0 to 1, by which a delay is made randomly shorter or longer (never longer than `maximum`), so
    that jobs which failed together do not come back together. `base` and `maximum` may be given as timedelta.
    Raises `DefinitionError` for options out of range.
    """

    base: float = 5.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.1

    def __init__(
        self,
        base: float | timedelta = 5.0,
        factor: float = 2.0,
        maximum: float | timedelta = 3600.0,
        jitter: float = 0.1,
    ) -> None:
        for name, value in (
            ("base", seconds(base, "base")),
            ("factor", _number(factor, "factor", 1, 1000)),
            ("maximum", seconds(maximum, "maximum", maximum=MAX_DELAY)),
            ("jitter", _number(jitter, "jitter", 0, 1)),
        ):
            object.__setattr__(self, name, value)

    def __call__(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt`, counted from 1."""
        delay = self._exact(max(attempt, 1)) * (1 + self.jitter * random.uniform(-1, 1))
        return min(self.maximum, delay)

    def _exact(self, attempt: int) -> float:
        try:
            return min(self.maximum, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            return self.maximum if self.base else 0.0


DEFAULT_BACKOFF = Backoff()


def delay_after(backoff: Callable[[int], object], attempt: int) -> float:
    """Seconds to wait after attempt number `attempt`, from 0 to 7 days, whatever `backoff` returns or raises.

    What is no duration (an exception, None, NaN, a negative number) is logged, and the default `Backoff` used instead.
    """
    try:
        value = backoff(attempt)
        delay = as_float(value)
        problem = f"returned {shown(value)}"
    except BaseException as error:  # also a SystemExit: it must not end the thread that asks
        delay, problem = None, f"raised {shown(error)}"
    if delay is None or math.isnan(delay) or delay < 0:
        logger.warning("backoff %s %s for attempt %s; the default is used", shown(backoff), problem, attempt)
        delay = DEFAULT_BACKOFF(attempt)
    return min(delay, MAX_DELAY)
