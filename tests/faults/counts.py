"""What is counted in the end: each count is a query for what breaks a promise, and its rows are the cases.

They read the tables of the queue, the ledger, and what `verdict.PREPARE` makes of it:
`runs`, one row for each claim with the end of it; `waits`, one row for each time a job was pending, with the claim that
ended it; and `lines`, the same for each key, with the earliest `run_at` of those claimed later.
"""

from __future__ import annotations

from typing import NamedTuple


class Count(NamedTuple):
    """`allowed` says that its cases are no fault, but worth knowing."""

    name: str
    meaning: str
    sql: str
    allowed: bool = False


LOST = Count(
    "lost",
    "committed; neither ended nor eligible",
    """
SELECT p.id FROM produced AS p LEFT JOIN sqlane_jobs AS j ON j.id = p.id WHERE p.outcome = 'ack' AND j.id IS NULL
UNION ALL
SELECT c.child_id FROM children AS c LEFT JOIN sqlane_jobs AS j ON j.id = c.child_id WHERE j.id IS NULL
UNION ALL
SELECT j.id FROM sqlane_jobs AS j WHERE j.status = 'pending' AND (
    NOT EXISTS (SELECT FROM sqlane_payloads AS p WHERE p.id = j.id)
    OR EXISTS (SELECT FROM unnest(j.mutex_keys) AS k(mutex_key) WHERE NOT EXISTS (
        SELECT FROM sqlane_waits AS w WHERE (w.mutex_key, w.run_at, w.job_id) = (k.mutex_key, j.run_at, j.id))))""",
)

LEFT = Count(
    "left undone",
    "not ended at rest",
    "SELECT id, status FROM sqlane_jobs WHERE status NOT IN ('completed', 'failed')",
)

# A running job may be stuck without being past its lease, and is counted as left undone then.
STUCK = Count(
    "stuck",
    "past its lease by two sweeps, at rest",
    """
SELECT id FROM sqlane_jobs WHERE status = 'running'
AND locked_until < clock_timestamp() - 2 * CAST(:sweep AS float) * interval '1 second'""",
)

PHANTOM = Count(
    "phantom",
    "there, and committed by nobody",
    """
SELECT j.id, j.job_name FROM sqlane_jobs AS j WHERE j.job_name <> 'react'
AND NOT EXISTS (SELECT FROM produced AS p WHERE p.id = j.id AND p.outcome IN ('ack', 'unknown'))
AND NOT EXISTS (SELECT FROM children AS c WHERE c.child_id = j.id)""",
)

RECOVERED = Count(
    "recovered",
    "there; its commit was not acknowledged",
    "SELECT j.id FROM produced AS p JOIN sqlane_jobs AS j ON j.id = p.id WHERE p.outcome = 'unknown'",
    allowed=True,
)

# The attempts of an ended job count its last one, whichever way it ended; a run that stalled or was released is not
# among them.
STARTS = Count(
    "unexplained starts",
    "beyond retries, stalls and releases",
    """
SELECT j.id, s.starts, j.attempts + j.stalls + coalesce(r.releases, 0) AS explained
FROM (SELECT job_id, count(*) AS starts FROM notes WHERE event = 'start' GROUP BY job_id) AS s
JOIN sqlane_jobs AS j ON j.id = s.job_id
LEFT JOIN (SELECT job_id, count(*) AS releases FROM moves WHERE event = 'release' GROUP BY job_id) AS r
    ON r.job_id = s.job_id
WHERE s.starts > j.attempts + j.stalls + coalesce(r.releases, 0) + CAST(j.status = 'running' AS int)
UNION ALL
SELECT s.job_id, s.starts, count(r.job_id) FROM (
    SELECT job_id, token, count(*) AS starts FROM notes WHERE event = 'start' GROUP BY job_id, token) AS s
LEFT JOIN runs AS r ON r.job_id = s.job_id AND r.token = s.token
GROUP BY s.job_id, s.token, s.starts HAVING s.starts <> 1 OR count(r.job_id) <> 1""",
)

STALE = Count(
    "stale writes accepted",
    "by somebody who did not hold the job",
    """
SELECT job_id, event, token, holder, writer FROM moves
WHERE (event IN ('complete', 'retry', 'fail', 'release', 'renew') AND writer IS DISTINCT FROM holder)
   OR event IN ('illegal', 'delete') OR (event IN ('stall', 'stall for good') AND at < lease_end)
UNION ALL
SELECT r.job_id, 'complete without a run', r.token, r.holder, NULL FROM runs AS r
WHERE r.end_event = 'complete' AND NOT EXISTS (
    SELECT FROM notes AS s WHERE s.job_id = r.job_id AND s.token = r.token AND s.event = 'start')""",
)

# By the numbers of the moves: the row of the key in `mutexes` lets one transaction after the other have them. A linger
# may end early by the hand of the one who held the key: its handler, which the linger was for, has ended.
OVERLAPS = Count(
    "overlaps per key",
    "claimed while the key was held",
    """
SELECT key, job_id, n FROM (
    SELECT k.key, r.job_id, r.n, max(coalesce(r.end_n, 9223372036854775807)) OVER (
        PARTITION BY k.key ORDER BY r.n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS others_end
    FROM runs AS r JOIN sqlane_jobs AS j ON j.id = r.job_id CROSS JOIN unnest(j.mutex_keys) AS k(key)) AS held
WHERE n < others_end
UNION ALL
SELECT l.mutex_key, r.job_id, r.n FROM lingers AS l CROSS JOIN LATERAL (
    SELECT c.job_id, c.n FROM runs AS c JOIN sqlane_jobs AS j ON j.id = c.job_id
    WHERE c.n > l.n AND c.at < l.held_until AND c.at >= l.at - interval '1 second'
    AND l.mutex_key = ANY(j.mutex_keys)) AS r
WHERE NOT EXISTS (
    SELECT FROM freed AS f JOIN runs AS h ON h.job_id = l.job_id AND h.token = l.token AND h.holder = f.writer
    WHERE f.mutex_key = l.mutex_key AND f.token = l.token AND f.n BETWEEN l.n AND r.n)""",
)

_HANDLED = """
WITH handled AS (
    SELECT k.key, s.job_id, s.at AS started_at, e.at AS ended_at,
           r.end_event IN ('stall', 'stall for good') OR (r.end_event = 'release' AND r.end_at < e.at) AS fenced
    FROM notes AS s JOIN notes AS e ON e.job_id = s.job_id AND e.token = s.token AND e.event = 'end'
    JOIN runs AS r ON r.job_id = s.job_id AND r.token = s.token
    JOIN sqlane_jobs AS j ON j.id = s.job_id CROSS JOIN unnest(j.mutex_keys) AS k(key)
    WHERE s.event = 'start'
)"""

# A handler whose run was taken away while its process was stopped, or cut off, cannot be stopped by anybody: it is the
# database that refuses what it writes. Of the handlers whose runs were not taken away none overlaps another.
HANDLERS = Count(
    "handlers side by side",
    "of one key, and no lease had ended",
    _HANDLED
    + """
SELECT key, job_id FROM (
    SELECT key, job_id, started_at, max(ended_at) OVER (
        PARTITION BY key ORDER BY started_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS others_end
    FROM handled WHERE NOT fenced) AS h
WHERE started_at < others_end""",
)

FENCED = Count(
    "handlers fenced off",
    "too late; what they wrote was refused",
    _HANDLED
    + """
SELECT a.key, a.job_id FROM handled AS a WHERE a.fenced AND EXISTS (
    SELECT FROM handled AS b WHERE b.key = a.key AND (b.job_id, b.started_at) <> (a.job_id, a.started_at)
    AND b.started_at < a.ended_at AND a.started_at < b.ended_at)""",
    allowed=True,
)

# Only what was certainly visible to the claim: committed a while before its transaction began. What commits late is
# late in its lines, which is documented.
INVERSIONS = Count(
    "order inversions per key",
    "before an older one, due and visible",
    """
SELECT c.key, c.job_id, a.job_id AS older_id, c.run_at, a.run_at AS older_run_at, a.visible_at, c.claim_begun_at,
       c.claim_at, a.claim_at AS older_claim_at FROM lines AS c JOIN lines AS a ON a.key = c.key
AND coalesce(a.claim_n, 9223372036854775807) > c.claim_n AND (a.run_at, a.job_id) < (c.run_at, c.job_id)
AND a.run_at <= c.claim_begun_at
AND a.visible_at < c.claim_begun_at - CAST(:margin AS float) * interval '1 second'
WHERE c.claim_n IS NOT NULL AND c.next_run_at <= c.run_at""",
)

FAILURES = Count(
    "failures without their job",
    "not exactly one failure job for each",
    """
WITH reactions_of AS (
    SELECT r.failed_id, r.job_id FROM reactions AS r
    UNION
    SELECT p.payload ->> 'id', j.id FROM sqlane_jobs AS j JOIN sqlane_payloads AS p ON p.id = j.id
    WHERE j.job_name = 'react'
)
SELECT j.id, count(r.job_id) FROM sqlane_jobs AS j LEFT JOIN reactions_of AS r ON r.failed_id = j.id
WHERE j.status = 'failed' AND j.failure_job IS NOT NULL GROUP BY j.id HAVING count(r.job_id) <> 1
UNION ALL
SELECT j.id, 0 FROM sqlane_jobs AS j LEFT JOIN reactions_of AS r ON r.job_id = j.id
LEFT JOIN sqlane_jobs AS f ON f.id = r.failed_id AND f.status = 'failed' WHERE j.job_name = 'react' AND f.id IS NULL""",
)

EFFECTS = Count(
    "effects not exactly once",
    "of transactional jobs",
    """
WITH done AS (
    SELECT job_id, 'effect' AS kind FROM effects UNION ALL SELECT parent_id, 'parent' FROM children
    UNION ALL SELECT job_id, 'react' FROM reactions
)
SELECT j.id, count(d.job_id) FROM sqlane_jobs AS j LEFT JOIN done AS d ON d.job_id = j.id
WHERE j.job_name IN ('effect', 'account', 'parent', 'react') GROUP BY j.id, j.status
HAVING count(d.job_id) <> CAST(j.status = 'completed' AS int)
UNION ALL
SELECT coalesce(a.account, e.account), a.balance - e.entries FROM accounts AS a
FULL JOIN (SELECT account, count(*) AS entries FROM effects WHERE account IS NOT NULL GROUP BY account) AS e
    ON e.account = a.account
WHERE a.balance IS DISTINCT FROM e.entries""",
)

LEFTOVERS = Count(
    "rows left over",
    "holds, lines, payloads without a job",
    """
SELECT 'mutexes', m.mutex_key FROM sqlane_mutexes AS m WHERE (m.held_until IS NULL AND NOT EXISTS (
    SELECT FROM sqlane_jobs AS j WHERE j.id = m.job_id AND j.status = 'running' AND j.lock_token = m.lock_token))
    OR m.held_until < clock_timestamp() - 2 * CAST(:sweep AS float) * interval '1 second'
UNION ALL
SELECT 'waits', w.mutex_key FROM sqlane_waits AS w WHERE NOT EXISTS (
    SELECT FROM sqlane_jobs AS j WHERE j.id = w.job_id AND j.status = 'pending' AND j.run_at = w.run_at)
UNION ALL
SELECT 'payloads', p.id FROM sqlane_payloads AS p WHERE NOT EXISTS (
    SELECT FROM sqlane_jobs AS j WHERE j.id = p.id AND j.status <> 'completed')""",
)

COUNTS = (
    LOST, LEFT, STUCK, PHANTOM, RECOVERED, STARTS, STALE, OVERLAPS, HANDLERS, FENCED, INVERSIONS, FAILURES, EFFECTS,
    LEFTOVERS,
)  # fmt: skip
