"""Payloads far over the maximum, and those under it that nobody reads by the way."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sqlane_sa import PayloadError, Queue
from tests.enqueue.business import Order, seen, sql_sent

MB = 1_000_000


def one_string(size: int) -> Any:
    return "x" * size


def many_strings(size: int) -> Any:
    return {"lines": ["x" * MB] * (size // MB)}


@pytest.mark.parametrize("make", [one_string, many_strings])
@pytest.mark.parametrize("megabytes", [20, 300])
def test_too_large_is_refused_before_it_is_encoded(engine: sa.Engine, queue: Queue, megabytes: int, make: Any) -> None:
    """I107: early, by the documented maximum, and without a copy of what is too large."""
    queue.define("n")
    payload = make(megabytes * MB)
    with Session(engine) as session:
        session.add(Order(number=1))
        tracemalloc.start()
        with sql_sent(engine) as sent, pytest.raises(PayloadError, match="larger than 16 MiB") as caught:
            queue.enqueue(session, "n", payload)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sent == []
        session.commit()
    assert peak < MB
    assert len(str(caught.value)) < 500
    assert seen(engine) == (1, 0, 0, 0)


def test_stats_read_no_payloads(engine: sa.Engine, queue: Queue) -> None:
    """I107: also where there are large ones."""
    queue.define("n")
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("n", "x" * MB) for _ in range(3)))
    with engine.connect() as conn, sql_sent(engine) as sent:
        assert queue.stats(conn)["n"].pending == 3
    assert sent and not any("payloads" in statement for statement in sent)
