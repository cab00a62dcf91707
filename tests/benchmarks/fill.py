"""What stands in our tables before a run, written with SQL: a million rows in seconds."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

BATCH = 100_000

# The ids are before all ULIDs of our time. A name of their own, so that no two fills collide.
_JOBS = """
INSERT INTO sqlane_jobs (id, job_name, status, priority, run_at, mutex_keys, attempts, started_at, finished_at,
                         expires_at)
SELECT '{kind}' || lpad(n::text, 25, '0'), 'noop', '{status}', {priority},
       date_trunc('milliseconds', now() + interval '{due}'), {keys}, {ended}::int,
       CASE WHEN {ended} THEN now() END, CASE WHEN {ended} THEN now() END,
       CASE WHEN {ended} THEN now() + interval '1 day' END
FROM generate_series({first}, {last}) AS n"""
_PAYLOADS = """
INSERT INTO sqlane_payloads (id, payload) SELECT '{kind}' || lpad(n::text, 25, '0'), to_json(n)
FROM generate_series({first}, {last}) AS n"""
_WAITS = """
INSERT INTO sqlane_waits (mutex_key, run_at, job_id)
SELECT k, run_at, id FROM sqlane_jobs CROSS JOIN LATERAL unnest(mutex_keys) AS k
WHERE status = 'pending' AND id BETWEEN '{kind}' || lpad('{first}', 25, '0') AND '{kind}' || lpad('{last}', 25, '0')"""

HOLDER = "benchmark"
_HOLD = f"""
WITH holder AS (
    INSERT INTO sqlane_jobs (id, job_name, status, mutex_keys, lock_token, locked_by, locked_until, started_at)
    VALUES ('{HOLDER}', 'held elsewhere', 'running', ARRAY['held'], '{HOLDER}', '{HOLDER}', now() + interval '1 day',
            now()))
INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES ('held', '{HOLDER}', '{HOLDER}')"""

LEFT_BUT_HELD = f"SELECT 1 FROM sqlane_jobs WHERE status = 'running' AND locked_by <> '{HOLDER}' LIMIT 1"


def rows(
    dsn: str,
    count: int,
    *,
    status: str = "pending",
    priority: int = 0,
    due: str = "0 s",
    keys: str = "NULL",
    kind: str = "0",
    analysed: bool = True,
) -> None:
    """`due` is an interval from now, `keys` SQL for the keys of row n, `kind` the first character of the ids.
    Not `analysed`: no statistics are made, now or by autovacuum."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        if not analysed:
            never_analyse(conn)
        for first in range(1, count + 1, BATCH):
            values = {
                "kind": kind,
                "status": status,
                "priority": priority,
                "due": due,
                "keys": keys,
                "ended": str(status == "completed").lower(),
                "first": first,
                "last": min(first + BATCH - 1, count),
            }
            for statement in (_JOBS, _WAITS) if status == "completed" else (_JOBS, _PAYLOADS, _WAITS):
                conn.execute(statement.format(**values))
        if analysed:
            conn.execute("VACUUM ANALYZE")


def never_analyse(conn: psycopg.Connection) -> None:
    for table in ("jobs", "payloads", "waits"):
        conn.execute(f"ALTER TABLE sqlane_{table} SET (autovacuum_enabled = false)")


def hold_key(dsn: str) -> None:
    """The key "held" belongs to a job that runs all day."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(_HOLD)


def future(count: int) -> Callable[[str], None]:
    return lambda dsn: rows(dsn, count, due="10 day")


def better(count: int) -> Callable[[str], None]:
    return lambda dsn: rows(dsn, count, due="10 day", priority=-10)


def history(count: int) -> Callable[[str], None]:
    return lambda dsn: rows(dsn, count, status="completed", analysed=False)


def held(count: int) -> Callable[[str], None]:
    """So many due jobs on one held key, an hour old."""

    def prepare(dsn: str) -> None:
        hold_key(dsn)
        rows(dsn, count, due="-1 hour", keys="ARRAY['held']")

    return prepare


def future_of(info: dict[str, object], count: int, dsn: str) -> None:
    """Scheduled jobs of another queue, by the statement that its script gives."""
    sql = str(info["future_sql"])
    with psycopg.connect(dsn, autocommit=True) as conn:
        if info.get("pre_future_sql"):
            conn.execute(str(info["pre_future_sql"]))
        for first in range(0, count, BATCH):
            conn.execute(sql % min(BATCH, count - first))
        conn.execute("VACUUM ANALYZE")
