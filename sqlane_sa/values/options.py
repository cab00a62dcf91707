"""The options of definitions and of new jobs, by name and type: what editors and type checkers know of `**options`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypedDict

from sqlane_sa.values.errors import DefinitionError

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
    for name in options:
        if name not in DefinitionOptions.__annotations__:
            known = ", ".join(DefinitionOptions.__annotations__)
            raise DefinitionError(f"there is no option {name!r}; a definition takes {known}", option=name)


def refuse_unknown(options: Iterable[str], method: str) -> None:
    """Raises `TypeError` for an option that no job has, in the name of the method that was called."""
    known = JobOptions.__annotations__
    for name in options:
        if name not in known:
            import difflib  # for this message alone

            close = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {close[0]!r}? It" if close else "it"
            raise TypeError(f"{method}() has no option {name!r}; {guess} takes {', '.join(known)}") from None
