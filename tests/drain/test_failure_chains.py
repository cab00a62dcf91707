"""Failure jobs that fail: their chain ends, also where they name each other."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import InvalidJobError, Queue
from sqlane_sa.testing import DrainResult, drain
from sqlane_sa.values.job import FailedJob
from sqlane_sa.values.reaction import MAX_CHAIN, reaction_payload


def test_a_circle_of_failure_jobs_ends(queue: Queue, conn: sa.Connection, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def fails(payload: Any) -> None:
        seen.append(payload)
        raise ValueError

    queue.job("ping", max_attempts=1, failure_job="pong")(fails)
    queue.job("pong", max_attempts=1, failure_job="ping")(fails)
    queue.enqueue(conn, "ping", "first")
    with caplog.at_level(logging.ERROR, "sqlane_sa.worker"):
        assert drain(conn, queue) == DrainResult(0, 0, failed=MAX_CHAIN + 1, released=0, remaining=0)
    innermost = seen[-1]
    for _ in range(MAX_CHAIN):
        innermost = innermost["payload"]
    assert innermost == "first"
    assert f"failure_job: 'ping' was the last of {MAX_CHAIN} failure jobs in a row" in caplog.text


def failed(payload: Any) -> FailedJob:
    return FailedJob(id="x", name="n", payload=payload, attempt=2, max_attempts=3, failure_job="sorry", error={"a": 1})


def test_a_payload_that_only_looks_alike_is_no_chain() -> None:
    payload: Any = "first"
    for _ in range(MAX_CHAIN):
        payload = {"id": 1, "name": "n", "payload": payload}
    expected = {"id": "x", "name": "n", "payload": payload, "attempt": 2, "max_attempts": 3, "error": {"a": 1}}
    assert reaction_payload(failed(payload)) == expected


def test_the_last_of_a_chain() -> None:
    payload: Any = "first"
    for _ in range(MAX_CHAIN):
        payload = reaction_payload(failed(payload))
    with pytest.raises(InvalidJobError) as caught:
        reaction_payload(failed(payload))
    assert (caught.value.place, caught.value.value) == ("failure_job", "sorry")
