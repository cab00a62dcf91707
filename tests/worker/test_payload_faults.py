"""Payloads that a handler changes, and results that Python itself cannot pass on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqlane_sa import Job, JobContext, Queue, Snooze, store
from tests.support import wait_until

Read = Callable[[str], Job]

ERRORS = [
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ValueError("Exceeds the limit for integer string conversion"),
    TypeError("Object of type object is not JSON serializable"),
    RecursionError("maximum recursion depth exceeded"),
]


def test_a_change_in_a_failing_handler_is_not_stored(queue: Queue, run: Any, enqueue: Any, job: Read) -> None:
    """Each attempt gets what was enqueued, and so does whoever looks."""
    seen: list[Any] = []

    @queue.job("bad", max_attempts=2, backoff=lambda attempt: 0)
    def bad(payload: dict[str, Any]) -> None:
        seen.append(str(payload))
        payload["items"].append("changed")
        payload.clear()
        raise ValueError

    id_ = enqueue("bad", {"items": [1]})
    run()
    assert seen == ["{'items': [1]}"] * 2
    assert (job(id_).status, job(id_).payload) == ("failed", {"items": [1]})


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("operation", ["complete", "retry_many", "release_many", "fail"])
def test_no_finishing_path_misses_an_error_of_pythons(
    queue: Queue, work: Any, enqueue: Any, job: Read, monkeypatch: Any, operation: str, error: Exception
) -> None:
    """They come from serialisation, and are no SQLAlchemyError: the result of one job is lost, and nothing else."""
    original, odd = getattr(store, operation), ""

    def refuse(conn: Any, tables: Any, /, **options: Any) -> Any:
        (given,) = (options[kind] for kind in ("jobs", "retries", "releases", "job") if kind in options)
        if odd in {one.id for one in (given if isinstance(given, (list, tuple)) else [given])}:
            raise error
        return original(conn, tables, **options)

    monkeypatch.setattr(store, operation, refuse)

    @queue.job("any", max_attempts=2, backoff=lambda attempt: 3600)
    def handler(payload: str, ctx: JobContext) -> None:
        if payload == "release_many":
            raise Snooze(3600)
        if payload != "complete":
            raise ValueError(payload)

    queue.job("last", max_attempts=1)(handler)
    name = "last" if operation == "fail" else "any"
    odd = enqueue(name, operation)
    neighbours = [enqueue(name, operation) for _ in range(6)]
    good = [enqueue("any", "complete") for _ in range(6)]
    worker = work(concurrency=20, lease=60)
    wait_until(lambda: {job(id_).status for id_ in good} == {"completed"})
    states = {"complete": "completed", "retry_many": "pending", "release_many": "pending", "fail": "failed"}
    wait_until(lambda: all((one := job(id_)).status == states[operation] and not one.lock_token for id_ in neighbours))
    wait_until(lambda: len(worker._parts.jobs) == 0)
    assert worker.failure is None
    later = enqueue("any", "complete")
    wait_until(lambda: job(later).status == "completed")
