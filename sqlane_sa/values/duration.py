"""Durations: seconds as int, float or timedelta, checked once at the edge and floats from there on."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

from sqlane_sa.values.errors import DefinitionError, shown

MAX_SECONDS = 100 * 365.25 * 86400.0
"""100 years: far from where PostgreSQL's timestamps overflow."""

ErrorMaker = Callable[[str, str, object], Exception]
"""(message, option, value) -> the error to raise."""


def definition_error(message: str, option: str, value: object) -> Exception:
    return DefinitionError(message, option=option, value=value)


def seconds(
    value: object,
    option: str,
    *,
    minimum: float = 0,
    exclusive: bool = False,
    maximum: float = MAX_SECONDS,
    error: ErrorMaker = definition_error,
) -> float:
    """`value` (int, float or timedelta) in seconds.

    Raises what `error` makes, by default a `DefinitionError`, for other types (bool too), for NaN and infinity, and for
    what is not between `minimum` and `maximum`; with `exclusive` the minimum itself is refused too.
    """
    number = as_float(value)
    if number is None:
        raise error(f"{option}={shown(value)} is no duration; use seconds (int or float) or a timedelta", option, value)
    if not math.isfinite(number) and not isinstance(value, int):
        raise error(f"{option}={shown(value)} is not finite; use a number of seconds", option, value)
    if number < minimum or number > maximum or (exclusive and number == minimum):
        low = f"{'more than' if exclusive else 'at least'} {minimum:g}"
        raise error(f"{option}={shown(value)} is out of range; use {low} and at most {maximum:.10g} s", option, value)
    return number


def optional_seconds(value: object, option: str) -> float | None:
    """`seconds`, and None for None."""
    return None if value is None else seconds(value, option)


def as_float(value: object) -> float | None:
    """The number of seconds, None if `value` has the wrong type; an integer too large for a float is infinite."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def to_ms(seconds: float) -> int:
    """Whole milliseconds, rounded to the nearest."""
    return round(seconds * 1000)
