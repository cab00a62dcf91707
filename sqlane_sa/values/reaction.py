"""What a failure job is told of the job that failed."""

from __future__ import annotations

from typing import Any

from sqlane_sa.values.errors import InvalidJobError, shown
from sqlane_sa.values.job import FailedJob

MAX_CHAIN = 10
"""Failure jobs of failure jobs. Each holds the payload of the one before, and a circle of them would never end."""

_FACTS = ("id", "name", "payload", "attempt", "max_attempts", "error")


def reaction_payload(failed: FailedJob) -> dict[str, Any]:
    """The payload of a failure job. Raises `InvalidJobError` where the failed job is the last that a chain may have."""
    if _chain(failed.payload) >= MAX_CHAIN:
        message = f"{shown(failed.name)} was the last of {MAX_CHAIN} failure jobs in a row; do they name each other?"
        raise InvalidJobError(message, place="failure_job", value=failed.failure_job)
    return {fact: getattr(failed, fact) for fact in _FACTS}


def _chain(payload: Any) -> int:
    """How many failure jobs led to a job with this payload, itself included."""
    length = 0
    while isinstance(payload, dict) and payload.keys() == set(_FACTS):
        payload = payload["payload"]
        length += 1
    return length
