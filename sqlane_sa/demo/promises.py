"""What the queue promises, and the SQL that measures whether it kept it."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, text


class Promise(NamedTuple):
    """`sql` returns one row: what was measured, for a person, and whether the promise was kept."""

    text: str
    sql: str


class Verdict(NamedTuple):
    promise: str
    measured: str
    kept: bool


# Each key's runs and lines: a job with several keys is in several.
KEYED = """
WITH keyed_runs AS (
    SELECT k.key, j.id, j.run_at, r.started_at, coalesce(r.ended_at, 'infinity') AS ended_at,
           r.started_at = max(r.started_at) OVER (PARTITION BY j.id) AS is_last
    FROM ledger_runs AS r JOIN sqlane_jobs AS j ON j.id = r.job_id CROSS JOIN unnest(j.mutex_keys) AS k(key)
)"""

PROMISES = (
    Promise(
        "Each committed order has its jobs",
        """
SELECT format('%s orders, %s jobs, %s missing', (SELECT count(*) FROM orders), count(*), count(*) - count(j.id)),
       count(*) > 0 AND count(*) = count(j.id) AND count(DISTINCT p.order_id) = (SELECT count(*) FROM orders)
FROM ledger_placed AS p LEFT JOIN sqlane_jobs AS j ON j.id = p.job_id WHERE p.committed""",
    ),
    Promise(
        "An order rolled back never had any",
        """
SELECT format('%s rolled back, %s jobs of theirs', count(DISTINCT p.order_id), count(j.id) + count(o.id)),
       count(*) > 0 AND count(j.id) = 0 AND count(o.id) = 0
FROM ledger_placed AS p LEFT JOIN sqlane_jobs AS j ON j.id = p.job_id LEFT JOIN orders AS o ON o.id = p.order_id
WHERE NOT p.committed""",
    ),
    Promise(
        "No job is lost",
        """
SELECT format('%s completed, %s failed, %s lost', count(*) FILTER (WHERE status = 'completed'),
              count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status IN ('pending', 'running'))),
       bool_and(status IN ('completed', 'failed'))
FROM sqlane_jobs""",
    ),
    Promise(
        "Jobs that share a key never overlap",
        KEYED
        + """, measured AS (
    SELECT key, started_at < max(ended_at) OVER (
        PARTITION BY key ORDER BY started_at, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS is_overlap
    FROM keyed_runs
)
SELECT format('%s runs, %s keys, %s overlaps', count(*), count(DISTINCT key), count(*) FILTER (WHERE is_overlap)),
       count(*) > 0 AND count(*) FILTER (WHERE is_overlap) = 0
FROM measured""",
    ),
    # By its last run: a job that is tried again goes to the end of the line, and has that time in run_at.
    Promise(
        "They start in the order of their line",
        KEYED
        + """, measured AS (
    SELECT started_at < max(started_at) OVER (
        PARTITION BY key ORDER BY run_at, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS is_late
    FROM keyed_runs WHERE is_last
)
SELECT format('%s starts, %s out of order', count(*), count(*) FILTER (WHERE is_late)),
       count(*) > 0 AND count(*) FILTER (WHERE is_late) = 0
FROM measured""",
    ),
    Promise(
        "A transactional job acts exactly once",
        """
SELECT format('%s due, %s charged, %s cents off', due.orders, paid.charges, due.cents - spent.cents),
       (due.orders, due.orders, due.cents, due.cents) = (paid.charges, paid.orders, paid.cents, spent.cents)
FROM (SELECT count(*) AS orders, sum(cents) AS cents FROM orders
      WHERE mishap IS DISTINCT FROM 'card declined') AS due,
     (SELECT count(*) AS charges, count(DISTINCT order_id) AS orders, sum(cents) AS cents FROM charges) AS paid,
     (SELECT sum(spent_cents) AS cents FROM customers) AS spent""",
    ),
    Promise(
        "A failure brings its failure job",
        """
SELECT format('%s failed, %s jobs, %s refused', failed, reactions, refused),
       failed > 0 AND failed = reactions AND failed = refused
FROM (SELECT count(*) FILTER (WHERE status = 'failed') AS failed,
             count(*) FILTER (WHERE job_name = 'order.refuse') AS reactions FROM sqlane_jobs) AS jobs,
     (SELECT count(*) FILTER (WHERE status = 'refused') AS refused FROM orders) AS orders""",
    ),
    Promise(
        "A handler that hangs is timed out",
        """
SELECT format('%s hung, %s timed out, %s done',
              count(*), count(*) FILTER (WHERE timed_out), count(*) FILTER (WHERE done)),
       count(*) > 0 AND bool_and(coalesce(timed_out AND done, false))
FROM (SELECT j.last_error ->> 'type' LIKE '%JobTimeoutError' AS timed_out,
             j.status = 'completed' AND j.attempts > 1 AS done
      FROM orders AS o JOIN ledger_placed AS p ON p.order_id = o.id LEFT JOIN sqlane_jobs AS j ON j.id = p.job_id
      WHERE o.mishap = 'printer hangs' AND coalesce(j.job_name, 'order.print_card') = 'order.print_card') AS hung""",
    ),
    Promise(
        "A snooze costs no attempt",
        """
SELECT format('%s snoozed, %s tries, %s jobs', snoozes, attempts, jobs), snoozes > 0 AND attempts = jobs
FROM (SELECT count(*) AS snoozes FROM ledger_runs WHERE outcome = 'Snooze') AS runs,
     (SELECT count(*) AS jobs, sum(attempts) AS attempts FROM sqlane_jobs WHERE job_name = 'order.pack') AS packs""",
    ),
)


def verify(conn: Connection, schema: str) -> list[Verdict]:
    """Measure each promise on the demo's tables in `schema`, in the transaction of `conn`."""
    conn.execute(text("SELECT set_config('search_path', quote_ident(:schema), true)"), {"schema": schema})
    verdicts = []
    for promise in PROMISES:
        # Without parameters, so that what is shown in SQL here can be pasted into psql as it is.
        measured, kept = conn.exec_driver_sql(promise.sql.replace("%", "%%")).one()
        verdicts.append(Verdict(promise.text, measured, bool(kept)))
    return verdicts
