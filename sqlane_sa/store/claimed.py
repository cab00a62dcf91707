"""What a claim reads of the jobs that it starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Double
from sqlalchemy.types import TypeEngine

from sqlane_sa.schema import moment
from sqlane_sa.statement import INT, SMALL, TEXT, TEXTS
from sqlane_sa.store.reading import distinct_keys, readable
from sqlane_sa.values.job import ClaimedJob

READ_CLAIMED = f"""id, job_name, attempts, max_attempts, stalls, max_stalls, mutex_keys, failure_job, lock_token,
    {readable("created_at")} AS created_at,
    date_part('epoch', statement_timestamp() - {readable("run_at")}) * 1000 AS waited_ms,
    priority, {readable("run_at")} AS run_at"""

CLAIMED: dict[str, TypeEngine[Any]] = {
    "id": TEXT,
    "job_name": TEXT,
    "attempts": INT,
    "max_attempts": INT,
    "stalls": INT,
    "max_stalls": INT,
    "mutex_keys": TEXTS,
    "failure_job": TEXT,
    "lock_token": TEXT,
    "created_at": moment(),
    "waited_ms": Double(),
    "priority": SMALL,
    "run_at": moment(),
}

# The payload is a scalar subquery, so that it can only be an index probe for each job.
WITH_PAYLOADS = """
SELECT s.*, (SELECT CAST(p.payload AS text) FROM {payloads} AS p
             WHERE p.id = s.id AND octet_length(CAST(p.payload AS text)) <= :inline_bytes) AS payload_text
FROM started AS s"""
IN_ORDER = "\nORDER BY s.priority, s.run_at, s.id"

CLAIMED_WITH_PAYLOADS = CLAIMED | {"payload_text": TEXT}


def claimed_jobs(rows: Iterable[Any]) -> list[ClaimedJob]:
    """Rows of `CLAIMED`, with or without payloads."""
    jobs = [ClaimedJob(*row) for row in rows]
    return [job if job.mutex_keys is None else job._replace(mutex_keys=distinct_keys(job.mutex_keys)) for job in jobs]
