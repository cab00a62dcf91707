"""The verdict: every count, and how long it took to go on after the faults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.faults.counts import COUNTS
from tests.faults.history import Window

MARGIN = 2.0
"""Seconds for which an older job has been committed when a claim that passes it over is an inversion."""
GRACE = 3.0
"""Seconds that a recovery may take beyond what is promised: the machine has other things to do."""
EXAMPLES = 5

PREPARE = """
CREATE INDEX IF NOT EXISTS moves_job ON moves (job_id, n);
CREATE INDEX IF NOT EXISTS notes_job ON notes (job_id, token);
CREATE INDEX IF NOT EXISTS produced_id ON produced (id);
CREATE INDEX IF NOT EXISTS children_id ON children (child_id);
DROP TABLE IF EXISTS runs;
CREATE TABLE runs AS
SELECT c.n, c.at, c.job_id, c.token, c.holder, e.n AS end_n, e.at AS end_at, e.event AS end_event,
       e.lease_end AS lease_end
FROM moves AS c LEFT JOIN moves AS e ON e.job_id = c.job_id AND e.token = c.token AND e.n > c.n
AND e.event IN ('complete', 'retry', 'fail', 'release', 'stall', 'stall for good', 'illegal')
WHERE c.event = 'claim';
CREATE INDEX runs_job ON runs (job_id, token);
CREATE INDEX runs_at ON runs (at);
DROP TABLE IF EXISTS waits;
CREATE TABLE waits AS
SELECT job_id, run_at, coalesce(committed_at, pg_xact_commit_timestamp(xid), at) AS visible_at, claim_n, claim_at,
       claim_begun_at
FROM (SELECT m.*, lead(n) OVER job AS claim_n, lead(at) OVER job AS claim_at, lead(begun_at) OVER job AS claim_begun_at
      FROM moves AS m WHERE event <> 'renew' WINDOW job AS (PARTITION BY job_id ORDER BY n)) AS m
WHERE event IN ('insert', 'retry', 'release', 'stall');
DROP TABLE IF EXISTS lines;
CREATE TABLE lines AS
SELECT k.key, w.*, min(w.run_at) OVER (
    PARTITION BY k.key ORDER BY w.claim_n ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS next_run_at
FROM waits AS w JOIN sqlane_jobs AS j ON j.id = w.job_id CROSS JOIN unnest(j.mutex_keys) AS k(key);
CREATE INDEX lines_order ON lines (key, run_at, job_id);
ANALYZE moves, notes, lingers, runs, waits, lines, produced, children, effects, reactions;
ANALYZE sqlane_jobs, sqlane_payloads;
"""

# A plain job was due and visible, and in all that time no worker claimed anything.
IDLE = """
SELECT extract(epoch FROM idle_since) AS since, extract(epoch FROM claim_at) AS until, job_id FROM (
    SELECT w.job_id, w.claim_at, greatest(w.run_at, w.visible_at, r.last_at) AS idle_since
    FROM (SELECT job_id, n, lag(at) OVER (ORDER BY at, n) AS last_at FROM runs) AS r
    JOIN waits AS w ON w.job_id = r.job_id AND w.claim_n = r.n
    JOIN sqlane_jobs AS j ON j.id = w.job_id WHERE j.mutex_keys IS NULL) AS idle
WHERE claim_at - idle_since > interval '0.5 seconds'"""

TAKEN_BACK = """
SELECT extract(epoch FROM lease_end) AS since, extract(epoch FROM end_at) AS until, job_id FROM runs
WHERE end_event IN ('stall', 'stall for good')"""

NEXT_CLAIM = """
SELECT w.kind, extract(epoch FROM r.at - w.ended_at) AS seconds FROM windows AS w CROSS JOIN LATERAL (
    SELECT at FROM runs WHERE at >= w.ended_at ORDER BY at LIMIT 1) AS r"""

FIGURES = {
    "jobs": "SELECT count(*) FROM sqlane_jobs",
    "completed": "SELECT count(*) FROM sqlane_jobs WHERE status = 'completed'",
    "failed for good": "SELECT count(*) FROM sqlane_jobs WHERE status = 'failed'",
    "claims": "SELECT count(*) FROM runs",
    "retries": "SELECT count(*) FROM runs WHERE end_event = 'retry'",
    "releases": "SELECT count(*) FROM runs WHERE end_event = 'release'",
    "stalls": "SELECT count(*) FROM runs WHERE end_event IN ('stall', 'stall for good')",
    "repeated": "SELECT count(*) FROM (SELECT FROM notes WHERE event = 'start' GROUP BY job_id HAVING count(*) > 1) s",
}


class Counted(NamedTuple):
    """What a count found; `examples` are the first cases of what is not allowed."""

    name: str
    meaning: str
    value: int
    allowed: bool
    examples: list[str]

    @property
    def kept(self) -> bool:
        return self.allowed or self.value == 0


class Recovery(NamedTuple):
    """Seconds: the longest, and what it had to be below."""

    name: str
    longest: float
    bound: float
    job_id: str | None

    @property
    def kept(self) -> bool:
        return self.longest <= self.bound


class Verdict(NamedTuple):
    """`after` holds for each kind of fault the seconds from each end to the next claim."""

    figures: dict[str, int]
    counts: list[Counted]
    recoveries: list[Recovery]
    after: dict[str, list[float]]

    @property
    def kept(self) -> bool:
        return all(one.kept for one in (*self.counts, *self.recoveries))

    def value(self, name: str) -> int:
        return next(one.value for one in self.counts if one.name == name)


class Times(NamedTuple):
    """Of the workers, in seconds."""

    lease: float
    sweep: float
    poll: float

    @property
    def bound(self) -> float:
        return self.lease + self.sweep + self.poll + 1.0 + GRACE


def load(conn: sa.Connection, outcomes: dict[str, str], windows: Iterable[Window]) -> None:
    """What the producers know, and when there were faults."""
    driver: Any = conn.connection.driver_connection
    with driver.cursor().copy("COPY produced (id, outcome) FROM STDIN") as copy:
        for row in outcomes.items():
            copy.write_row(row)
    window = sa.text("INSERT INTO windows VALUES (:kind, to_timestamp(:started_at), to_timestamp(:ended_at))")
    rows = [one._asdict() for one in windows]
    if rows:
        conn.execute(window, rows)


def judge(
    conn: sa.Connection, times: Times, outages: Sequence[Window] = (), disturbances: Sequence[Window] = ()
) -> Verdict:
    """At rest. In `outages` no worker can be asked to go on; in `disturbances` some cannot, and may hold locks."""
    conn.exec_driver_sql(
        "SELECT set_config('work_mem', '128MB', false), set_config('maintenance_work_mem', '256MB', false)"
    )
    conn.exec_driver_sql(PREPARE)
    figures = {name: conn.exec_driver_sql(sql).scalar_one() for name, sql in FIGURES.items()}
    counts = [_counted(conn, *count, times=times) for count in COUNTS]
    after: dict[str, list[float]] = {}
    for kind, seconds in conn.exec_driver_sql(NEXT_CLAIM):
        after.setdefault(kind, []).append(float(seconds))
    recoveries = [
        _longest(conn, "idle with due jobs", IDLE, times.bound, outages),
        _longest(conn, "stalled past the lease", TAKEN_BACK, times.bound - times.lease, disturbances),
    ]
    return Verdict(figures, counts, recoveries, after)


def _counted(conn: sa.Connection, name: str, meaning: str, sql: str, allowed: bool, *, times: Times) -> Counted:
    values = {"sweep": times.sweep, "margin": MARGIN}
    used = {key: value for key, value in values.items() if f":{key} " in sql}
    rows = conn.execute(sa.text(f"SELECT count(*) OVER () AS found, * FROM ({sql}) AS s LIMIT {EXAMPLES}"), used).all()
    examples = [] if allowed else [" ".join(map(str, row[1:])) for row in rows]
    return Counted(name, meaning, rows[0].found if rows else 0, allowed, examples)


def _longest(conn: sa.Connection, name: str, sql: str, bound: float, outages: Sequence[Window]) -> Recovery:
    longest, job_id = 0.0, None
    for since, until, id_ in conn.exec_driver_sql(sql):
        seconds = quiet_seconds(float(since), float(until), outages)
        if seconds > longest:
            longest, job_id = seconds, id_
    return Recovery(name, longest, bound, job_id)


def quiet_seconds(since: float, until: float, outages: Sequence[Window]) -> float:
    """From the end of the last outage that lasted into the interval to its end; 0 within an outage."""
    for outage in outages:
        if outage.started_at < until and outage.ended_at > since:
            since = min(outage.ended_at, until)
    return until - since
