"""What the database says of a load once all is quiet, counted against what the producer knows."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.faults.load_producer import Producer

JOBS = "SELECT id, job_name, status, attempts, stalls FROM sqlane_jobs"
RUNS = "SELECT job_id, count(*) FROM runs GROUP BY job_id"
EFFECTS = "SELECT job_id, count(*) FROM effects GROUP BY job_id"
STUCK = "SELECT count(*) FROM sqlane_jobs WHERE status = 'running' AND locked_until < clock_timestamp()"
OVERLAPS = """
SELECT count(*) FROM runs AS a JOIN runs AS b
ON a.mutex_key = b.mutex_key AND (a.started_at, a.lock_token) < (b.started_at, b.lock_token)
AND b.started_at < a.ended_at AND a.held AND b.held"""
# What changed a job that the writer did not hold: the holder's writes are made under its name, and whoever takes a job
# back does so when its lease has ended.
STALE = """
SELECT count(*) FROM moves
WHERE (event IN ('complete', 'retry', 'fail', 'release', 'renew') AND writer IS DISTINCT FROM holder)
OR event IN ('illegal', 'delete') OR (event IN ('stall', 'stall for good') AND at < lease_end)"""
# Claimed while an older one of the key waited, was due, and was certainly visible: somebody saw the end of the
# transaction that made it wait before that of the claim began. What commits late is late in its line.
INVERSIONS = """
WITH waits AS MATERIALIZED (
    SELECT m.job_id, j.mutex_keys[1] AS key, m.run_at, m.event, m.by_xid,
           coalesce(lead(m.n) OVER job, 9223372036854775807) AS claim_n, lead(m.begun_at) OVER job AS claim_begun_at
    FROM moves AS m JOIN sqlane_jobs AS j ON j.id = m.job_id
    WHERE m.event <> 'renew' AND cardinality(j.mutex_keys) = 1 WINDOW job AS (PARTITION BY m.job_id ORDER BY m.n)
)
SELECT count(*) FROM waits AS c JOIN waits AS a ON a.key = c.key AND a.claim_n > c.claim_n
AND (a.run_at, a.job_id) < (c.run_at, c.job_id) AND a.run_at <= c.claim_begun_at
WHERE a.event IN ('insert', 'retry', 'release', 'stall') AND c.event IN ('insert', 'retry', 'release', 'stall')
AND EXISTS (SELECT FROM moves AS s WHERE s.seen_at < c.claim_begun_at AND pg_visible_in_snapshot(a.by_xid, s.snapshot))
"""
HELD = "SELECT count(*) FROM sqlane_mutexes WHERE held_until IS NULL"


QUERIES = {"stuck": STUCK, "stale": STALE, "overlaps": OVERLAPS, "inversions": INVERSIONS, "held": HELD}
ALLOWED = ("jobs", "recovered", "repeated", "stalled", "retried")


class Counts(NamedTuple):
    """Numbers of jobs; all but the first five must be 0.

    `recovered`: there, though their COMMIT was never acknowledged. `repeated`: started more than once; `unexplained`:
    more often than their attempts and stalls say. `retried`: with an attempt that failed. `reactions`: discarded jobs
    without exactly one failure job. `effects`: transactional jobs whose effect is not there exactly once. `stale`:
    writes that were accepted of somebody who did not hold the job. `inversions`: pairs of jobs of one key that were
    claimed in the wrong order.
    """

    jobs: int
    recovered: int
    repeated: int
    stalled: int
    retried: int
    lost: int
    phantom: int
    unexplained: int
    stuck: int
    failed: int
    reactions: int
    effects: int
    stale: int
    overlaps: int
    inversions: int
    held: int

    @property
    def faults(self) -> dict[str, int]:
        """What must not be there."""
        return {name: value for name, value in self._asdict().items() if value and name not in ALLOWED}


def count(engine: sa.Engine, producer: Producer) -> Counts:
    """Read it all in one snapshot."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as conn:
        jobs = {row.id: row for row in conn.execute(sa.text(JOBS))}
        starts, effects = _pairs(conn, RUNS), _pairs(conn, EFFECTS)
        found = {name: conn.scalar(sa.text(sql)) or 0 for name, sql in QUERIES.items()}
    ended = {id_ for id_, job in jobs.items() if job.status in ("completed", "failed")}
    produced = {id_ for id_, job in jobs.items() if job.job_name != "react"}
    failed = {id_ for id_, job in jobs.items() if job.status == "failed"}
    discarded = {id_ for id_ in failed if jobs[id_].job_name == "discard"}
    done = {id_ for id_, job in jobs.items() if job.job_name == "effect" and job.status == "completed"}
    return Counts(
        jobs=len(produced),
        recovered=len(produced & producer.unknown),
        repeated=sum(times > 1 for times in starts.values()),
        stalled=sum(job.stalls > 0 for job in jobs.values()),
        retried=sum(job.attempts > 1 for job in jobs.values()),
        lost=len(producer.acknowledged - ended),
        phantom=len(produced - producer.acknowledged - producer.unknown) + len(starts.keys() - jobs.keys()),
        unexplained=sum(times > jobs[id_].attempts + jobs[id_].stalls for id_, times in starts.items() if id_ in jobs),
        failed=len(failed - discarded),
        reactions=abs(len(discarded) - (len(jobs) - len(produced))),
        effects=sum(effects.get(id_, 0) != 1 for id_ in done | effects.keys()) + len(effects.keys() - done),
        **found,
    )


def _pairs(conn: sa.Connection, sql: str) -> dict[str, Any]:
    return {row[0]: row[1] for row in conn.execute(sa.text(sql))}
