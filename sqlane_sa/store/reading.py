"""What comes back is readable, whatever somebody wrote into a row by hand: one odd row must not hide the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

EARLIEST = "CAST('0001-01-02 UTC' AS timestamptz)"
LATEST = "CAST('9999-12-30 UTC' AS timestamptz)"
"""A day within the years of Python, because drivers read times in the time zone of the session."""


def readable(column: str) -> str:
    """SQL for a time as a driver can read it, and arithmetic take it: infinities, BC and years past 9999 are cut.

    For what is returned only: conditions and orders stay on the bare column, which is the indexed one.
    """
    return f"(CASE WHEN {column} < {EARLIEST} THEN {EARLIEST} WHEN {column} > {LATEST} THEN {LATEST} ELSE {column} END)"


def distinct_keys(stored: Sequence[Any] | None) -> list[str] | None:
    """Mutex keys from an array: each once, without NULLs, of any number of dimensions. None for none."""
    if type(stored) is list and len(stored) == 1 and type(stored[0]) is str:
        return stored
    return (list(dict.fromkeys(_flat(stored))) or None) if stored else None


def _flat(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        if isinstance(item, str):
            yield item
        elif item is not None:
            yield from _flat(item)
