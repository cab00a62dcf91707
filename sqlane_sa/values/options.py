"""The options of definitions and of new jobs, by name and type: what editors and type checkers know of `**options`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, TypedDict

from sqlane_sa.values.errors import DefinitionError, close_names

Seconds = float | timedelta
Keys = Iterable[str] | str | None


class DefinitionOptions(TypedDict, total=False):
    """Of `queue.job` and `queue.define`. `failure_job` is a name, or a handle with one."""

    max_attempts: int
    backoff: Callable[[int], object]
    timeout: Seconds | None
    priority: int
    mutex_keys: Callable[[Any], Keys] | Keys
    failure_job: Any
    max_stalls: int
    completed_retention: Seconds | None
    failed_retention: Seconds | None
    transactional: bool


class JobOptions(TypedDict, total=False):
    """Of `queue.new` and every enqueue of one job."""

    delay: Seconds | None
    run_at: datetime | None
    priority: int | None
    mutex_keys: Iterable[str] | None
    max_attempts: int | None
    id: str | None


def check_options(options: Iterable[str]) -> None:
    """Raises `DefinitionError` for an option that no definition has."""
    known = DefinitionOptions.__annotations__
    for name in options:
        if name not in known:
            message = f"there is no option {name!r}; {_guess(name, known, 'A definition')} takes {', '.join(known)}"
            raise DefinitionError(message, option=name)


def refuse_unknown(options: Iterable[str], method: str) -> None:
    """Raises `TypeError` for an option that no job has, in the name of the method that was called."""
    known = JobOptions.__annotations__
    for name in options:
        if name not in known:
            message = f"{method}() has no option {name!r}; {_guess(name, known, 'It')} takes {', '.join(known)}"
            raise TypeError(message) from None


def _guess(name: str, known: Collection[str], it: str) -> str:
    close = close_names(name, known)
    return f"did you mean {close[0]!r}? {it}" if close else it[0].lower() + it[1:]
