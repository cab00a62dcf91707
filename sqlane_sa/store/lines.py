"""Lines: who is first in the line of each mutex key."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import INT, SMALL, TEXT, TEXTS, Statement
from sqlane_sa.store.candidates import HEADS, STARTABLE

# The first due job of the line of l.mutex_key: places without their pending jobs count nothing.
_HEAD = """
    SELECT h.id, h.job_name, h.priority, h.run_at, h.mutex_keys, l.mutex_key FROM LINES AS l CROSS JOIN LATERAL (
        SELECT j.id, j.job_name, j.priority, j.run_at, j.mutex_keys
        FROM {waits} AS w CROSS JOIN LATERAL (
            SELECT a.id, a.job_name, a.priority, a.run_at, a.mutex_keys FROM {jobs} AS a
            WHERE a.id = w.job_id AND coalesce(a.status, '') = 'pending' AND a.mutex_keys IS NOT NULL
            AND a.run_at <= statement_timestamp() LIMIT 1) AS j
        WHERE w.mutex_key = l.mutex_key AND w.run_at <= statement_timestamp()
        ORDER BY w.run_at, w.job_id LIMIT 1) AS h
    WHERE h.job_name = ANY(CAST(:names AS text[]))"""

HEADS_OF_KEYS = (
    "WITH head AS MATERIALIZED ("
    + _HEAD.replace("LINES", "unnest(CAST(:keys AS text[]))").replace("AS l CROSS", "AS l(mutex_key) CROSS")
    + ")"
)

# From key to key, one index probe each. A row without a priority names the last key, when there may be more.
FIND_FREE = Statement(
    """
WITH RECURSIVE line AS (
    (SELECT w.mutex_key, 1 AS place FROM {waits} AS w WHERE w.mutex_key > :after_key ORDER BY w.mutex_key LIMIT 1)
    UNION ALL
    SELECT n.mutex_key, l.place + 1 FROM line AS l CROSS JOIN LATERAL (
        SELECT w.mutex_key FROM {waits} AS w WHERE w.mutex_key > l.mutex_key ORDER BY w.mutex_key LIMIT 1) AS n
    WHERE l.place < :heads
), head AS MATERIALIZED ("""
    + _HEAD.replace("LINES", "line")
    + """
)
SELECT c.mutex_key, c.priority FROM head AS c WHERE """
    + STARTABLE
    + """
UNION ALL
SELECT l.mutex_key, NULL FROM line AS l WHERE l.place = :heads""",
    {"names": TEXTS, "after_key": TEXT, "heads": INT},
    {"mutex_key": TEXT, "priority": SMALL},
)


class FreeLines(NamedTuple):
    """Keys whose first due jobs can start, by the priorities of these jobs. `after_key` is the last one looked at, or
    None when there are no more."""

    keys: list[str]
    after_key: str | None


def find_free_lines(
    conn: Connection, /, tables: Tables, *, names: Collection[str], after_key: str = "", heads: int = HEADS
) -> FreeLines:
    """Look at the lines of `heads` keys after `after_key`, for those whose first due job is of these names and can
    start now: whatever waits in the other lines, and however long they are."""
    parameters = {"names": sorted(names), "after_key": after_key, "heads": heads}
    rows = conn.execute(FIND_FREE.on(tables), parameters).all()
    free = sorted((row.priority, place, row.mutex_key) for place, row in enumerate(rows) if row.priority is not None)
    return FreeLines([key for *_, key in free], next((row.mutex_key for row in rows if row.priority is None), None))
