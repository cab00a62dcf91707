"""Probe: when is the next job of each name due? A loose index scan, whatever the backlog."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, BOOL, INTS, SMALL, TEXT, TEXTS, Statement
from sqlane_sa.store.candidates import LANES
from sqlane_sa.store.reading import readable


class Lane(NamedTuple):
    """The pending jobs of one name and priority, with or without mutex keys."""

    name: str
    priority: int
    keyed: bool
    delay_ms: int


_SKIP = """
    (SELECT job_name, priority, run_at FROM {jobs} AS j
     WHERE status = 'pending' AND mutex_keys IS KEYED
     ORDER BY job_name, priority, run_at, id LIMIT 1)
    UNION ALL
    SELECT n.job_name, n.priority, n.run_at FROM LANE AS l CROSS JOIN LATERAL (
        SELECT j.job_name, j.priority, j.run_at FROM {jobs} AS j
        WHERE j.status = 'pending' AND j.mutex_keys IS KEYED
          AND (j.job_name, j.priority) > (l.job_name, l.priority)
        ORDER BY j.job_name, j.priority, j.run_at, j.id LIMIT 1) AS n
"""

# From lane to lane, one index probe each. Rounded up: a delay cut to whole milliseconds would wake a moment too early.
PROBE = Statement(
    "WITH RECURSIVE plain AS ("
    + _SKIP.replace("KEYED", "NULL").replace("LANE", "plain")
    + "), keyed AS ("
    + _SKIP.replace("KEYED", "NOT NULL").replace("LANE", "keyed")
    + f""")
SELECT job_name, priority, keyed,
       CAST(ceil(extract(epoch FROM {readable("run_at")} - statement_timestamp()) * 1000) AS bigint) AS delay_ms
FROM (SELECT job_name, priority, run_at, false AS keyed FROM plain
      UNION ALL SELECT job_name, priority, run_at, true FROM keyed) AS lanes
ORDER BY job_name, priority, keyed""",
    {},
    {"job_name": TEXT, "priority": SMALL, "keyed": BOOL, "delay_ms": BIG},
)

NEXT_LINGER_END = Statement(
    f"""
SELECT CAST(ceil(extract(epoch FROM {readable("held_until")} - statement_timestamp()) * 1000) AS bigint) AS delay_ms
FROM {{mutexes}} WHERE held_until > statement_timestamp() ORDER BY held_until LIMIT 1""",
    {},
    {"delay_ms": BIG},
)

NEXT_KEYED = Statement(
    LANES.replace("KEYED", "NOT NULL")
    + f"""
SELECT CAST(ceil(extract(epoch FROM {readable("min(at)")} - statement_timestamp()) * 1000) AS bigint) AS delay_ms
FROM (
    SELECT n.run_at AS at FROM lane AS l CROSS JOIN LATERAL (
        SELECT j.run_at FROM {{jobs}} AS j
        WHERE j.status = 'pending' AND j.mutex_keys IS NOT NULL AND j.job_name = l.job_name
          AND j.priority = l.priority AND j.run_at > statement_timestamp()
        ORDER BY j.run_at, j.id LIMIT 1) AS n
    UNION ALL
    (SELECT held_until FROM {{mutexes}} WHERE held_until > statement_timestamp() ORDER BY held_until LIMIT 1)
) AS times""",
    {"names": TEXTS, "limits": INTS},
    {"delay_ms": BIG},
)


def probe(conn: Connection, /, tables: Tables) -> list[tuple[str, int]]:
    """`(name, delay in ms)` of the next job of each name with pending jobs, by name; negative when overdue."""
    earliest: dict[str, int] = {}
    for lane in probe_lanes(conn, tables):
        earliest[lane.name] = min(lane.delay_ms, earliest.get(lane.name, lane.delay_ms))
    return list(earliest.items())


def probe_lanes(conn: Connection, /, tables: Tables) -> Sequence[Lane]:
    """The next due time of each lane: one index probe per name, priority and kind with pending jobs."""
    return [Lane._make(row) for row in conn.execute(PROBE.on(tables))]


def next_linger_end(conn: Connection, /, tables: Tables) -> int | None:
    """Milliseconds until the next lingering key is free; None when none lingers."""
    return conn.execute(NEXT_LINGER_END.on(tables)).scalar()


def next_keyed(conn: Connection, /, tables: Tables, *, names: Collection[str]) -> int | None:
    """Milliseconds until the next lingering key is free or the next job with keys of these names is due; None for
    neither. A due job that waits for its key does not hide those that are due later."""
    parameters = {"names": sorted(names), "limits": [0] * len(names)}
    return conn.execute(NEXT_KEYED.on(tables), parameters).scalar()
