"""Inspection: one job by id, and figures per name that read no completed rows."""

from __future__ import annotations

import json

from sqlalchemy import Connection

from sqlane_sa.schema import Tables, moment
from sqlane_sa.statement import BIG, INT, SMALL, TEXT, TEXTS, Statement
from sqlane_sa.store.reading import distinct_keys, readable
from sqlane_sa.values.errors import PayloadError
from sqlane_sa.values.job import Job, NameStats
from sqlane_sa.values.payload import decode


def _time(column: str) -> str:
    return f"{readable('j.' + column)} AS {column}"


# JSON as text: an engine may have a json_deserializer of its own.
GET = Statement(
    f"""
SELECT j.id, j.job_name, j.status, j.priority, {_time("run_at")}, j.attempts, j.max_attempts, j.stalls, j.max_stalls,
       j.mutex_keys, j.failure_job, j.lock_token, j.locked_by, {_time("locked_until")}, {_time("started_at")},
       {_time("timed_out_at")}, {_time("finished_at")}, {_time("expires_at")},
       CAST(j.last_error AS text) AS last_error, {_time("created_at")}, {_time("updated_at")},
       (SELECT CAST(p.payload AS text) FROM {{payloads}} AS p WHERE p.id = j.id) AS payload
FROM {{jobs}} AS j WHERE j.id = :id""",
    {"id": TEXT},
    {
        "id": TEXT,
        "job_name": TEXT,
        "status": TEXT,
        "priority": SMALL,
        "run_at": moment(),
        "attempts": INT,
        "max_attempts": INT,
        "stalls": INT,
        "max_stalls": INT,
        "mutex_keys": TEXTS,
        "failure_job": TEXT,
        "lock_token": TEXT,
        "locked_by": TEXT,
        "locked_until": moment(),
        "started_at": moment(),
        "timed_out_at": moment(),
        "finished_at": moment(),
        "expires_at": moment(),
        "last_error": TEXT,
        "created_at": moment(),
        "updated_at": moment(),
        "payload": TEXT,
    },
)

# Each part reads one partial index; together in one WHERE, the planner would read the completed rows as well.
_PART = """
SELECT job_name, count(*) AS pending, count(*) FILTER (WHERE run_at <= statement_timestamp()) AS due, 0 AS running,
       0 AS stuck, 0 AS failed, min(run_at) FILTER (WHERE run_at <= statement_timestamp()) AS oldest
FROM {jobs} WHERE status = 'pending' AND mutex_keys IS KEYED GROUP BY job_name"""

STATS = Statement(
    "SELECT job_name, CAST(sum(pending) AS bigint) AS pending, CAST(sum(due) AS bigint) AS due,"
    " CAST(sum(running) AS bigint) AS running, CAST(sum(stuck) AS bigint) AS stuck,"
    " CAST(sum(failed) AS bigint) AS failed,"
    f" CAST(floor(extract(epoch FROM statement_timestamp() - {readable('min(oldest)')}) * 1000) AS bigint)"
    " AS oldest_due_ms FROM ("
    + _PART.replace("KEYED", "NULL")
    + "\nUNION ALL"
    + _PART.replace("KEYED", "NOT NULL")
    + """
UNION ALL
SELECT job_name, 0, 0, count(*), count(timed_out_at), 0, NULL FROM {jobs} WHERE status = 'running' GROUP BY job_name
UNION ALL
SELECT job_name, 0, 0, 0, 0, count(*), NULL FROM {jobs} WHERE status = 'failed' GROUP BY job_name
) AS parts GROUP BY job_name ORDER BY job_name""",
    {},
    {
        "job_name": TEXT,
        "pending": BIG,
        "due": BIG,
        "running": BIG,
        "stuck": BIG,
        "failed": BIG,
        "oldest_due_ms": BIG,
    },
)


def get(conn: Connection, /, tables: Tables, *, id: str) -> Job | None:
    """The job with its payload, or None. `payload_error` says why a payload could not be decoded."""
    row = conn.execute(GET.on(tables), {"id": id}).one_or_none()
    if row is None:
        return None
    facts = dict(row._mapping)
    name, keys = facts.pop("job_name"), distinct_keys(facts.pop("mutex_keys"))
    payload, problem = None, None
    try:
        payload = None if row.payload is None else decode(row.payload)
    except PayloadError as error:
        problem = str(error)
    facts["payload"] = payload
    facts["last_error"] = None if row.last_error is None else json.loads(row.last_error)
    return Job(name=name, mutex_keys=None if keys is None else tuple(keys), payload_error=problem, **facts)


def stats(conn: Connection, /, tables: Tables) -> dict[str, NameStats]:
    """Name to pending, due, running, stuck and failed jobs and the age of the oldest due one in ms, for the names
    that have any."""
    return {row.job_name: NameStats._make(row) for row in conn.execute(STATS.on(tables))}
