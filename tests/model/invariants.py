"""What holds in the tables after every committed step, whatever happened: each query returns what breaks it.

`find_violations(conn)` is for any database whose rows only the store has changed.
"""

from __future__ import annotations

import sqlalchemy as sa

_KEYS = "sqlane_jobs AS j CROSS JOIN LATERAL unnest(j.mutex_keys) AS k(mutex_key)"

INVARIANTS = {
    "a key is held without its running job": """
        SELECT m.mutex_key FROM sqlane_mutexes AS m WHERE m.held_until IS NULL AND NOT EXISTS (
            SELECT FROM sqlane_jobs AS j WHERE j.id = m.job_id AND j.status = 'running'
            AND j.lock_token = m.lock_token AND m.mutex_key = ANY(j.mutex_keys))""",
    "a running job does not hold one of its keys": f"""
        SELECT j.id || ' ' || k.mutex_key FROM {_KEYS} WHERE j.status = 'running' AND NOT EXISTS (
            SELECT FROM sqlane_mutexes AS m WHERE m.mutex_key = k.mutex_key AND m.job_id = j.id
            AND m.lock_token = j.lock_token AND m.held_until IS NULL)""",
    "two running jobs share a key": f"""
        SELECT k.mutex_key FROM {_KEYS} WHERE j.status = 'running' GROUP BY k.mutex_key HAVING count(*) > 1""",
    "a running job has a key that another holds or that lingers": f"""
        SELECT j.id || ' ' || k.mutex_key FROM {_KEYS} JOIN sqlane_mutexes AS m ON m.mutex_key = k.mutex_key
        WHERE j.status = 'running' AND (m.job_id, m.lock_token) IS DISTINCT FROM (j.id, j.lock_token)""",
    "two rows for one key": """
        SELECT mutex_key FROM sqlane_mutexes GROUP BY mutex_key HAVING count(*) > 1""",
    "two rows for one job": """
        SELECT id FROM sqlane_jobs GROUP BY id HAVING count(*) > 1""",
    "a pending job is not in the line of its key": f"""
        SELECT j.id || ' ' || k.mutex_key FROM {_KEYS} WHERE j.status = 'pending' AND NOT EXISTS (
            SELECT FROM sqlane_waits AS w
            WHERE w.mutex_key = k.mutex_key AND w.run_at = j.run_at AND w.job_id = j.id)""",
    "a place in a line without its pending job": """
        SELECT w.job_id || ' ' || w.mutex_key FROM sqlane_waits AS w WHERE NOT EXISTS (
            SELECT FROM sqlane_jobs AS j WHERE j.id = w.job_id AND j.status = 'pending' AND j.run_at = w.run_at
            AND w.mutex_key = ANY(j.mutex_keys))""",
    "a job that is not completed without its payload": """
        SELECT j.id FROM sqlane_jobs AS j WHERE j.status <> 'completed'
        AND NOT EXISTS (SELECT FROM sqlane_payloads AS p WHERE p.id = j.id)""",
    "a payload without its job, or of a completed one": """
        SELECT p.id FROM sqlane_payloads AS p WHERE NOT EXISTS (
            SELECT FROM sqlane_jobs AS j WHERE j.id = p.id AND j.status <> 'completed')""",
    "a running job without its lock": """
        SELECT id FROM sqlane_jobs WHERE status = 'running'
        AND num_nulls(lock_token, locked_by, locked_until, started_at) > 0""",
    "a lock without its running job": """
        SELECT id FROM sqlane_jobs WHERE status <> 'running'
        AND num_nonnulls(lock_token, locked_by, locked_until, timed_out_at) > 0""",
    "an unfinished job that has finished or expires": """
        SELECT id FROM sqlane_jobs
        WHERE status IN ('pending', 'running') AND num_nonnulls(finished_at, expires_at) > 0""",
    "a pending job that has started": """
        SELECT id FROM sqlane_jobs WHERE status = 'pending' AND started_at IS NOT NULL""",
    "a finished job that does not expire after its retention": """
        SELECT id FROM sqlane_jobs WHERE status IN ('completed', 'failed') AND (finished_at IS NULL
        OR expires_at - finished_at IS DISTINCT FROM interval '1 ms'
            * CASE status WHEN 'failed' THEN failed_retention_ms ELSE completed_retention_ms END)""",
}

# Only where one session works, for by other clocks than the database's start of a statement the order is not defined:
# a job under a token of this form was claimed from the candidates, and nobody who was due before it stands behind it.
IN_LINE = "in-line-"
FIFO = {
    "a job has overtaken an older one in the line of a key": f"""
        SELECT j.id || ' before ' || p.id FROM sqlane_jobs AS j JOIN sqlane_jobs AS p ON p.mutex_keys && j.mutex_keys
        WHERE j.status = 'running' AND j.lock_token LIKE '{IN_LINE}%' AND p.status = 'pending'
        AND (p.run_at, p.id) < (j.run_at, j.id) AND p.updated_at < j.started_at"""
}


def union(invariants: dict[str, str]) -> str:
    """SQL for (name, what) of every violation."""
    parts = (f"SELECT '{name}' AS name, CAST(what AS text) FROM ({sql}) AS v(what)" for name, sql in invariants.items())
    return " UNION ALL ".join(parts)


_ALL = sa.text(union(INVARIANTS))


def find_violations(conn: sa.Connection) -> set[tuple[str, str]]:
    """(which invariant, of what) that does not hold."""
    return {(row.name, row.what) for row in conn.execute(_ALL)}
