"""Lines: who is first in the line of each mutex key."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import INT, SMALL, TEXT, TEXTS, Statement
from sqlane_sa.store.candidates import HEAD, HEADS, STARTABLE_HEAD, WALK

HEADS_OF_KEYS = (
    "WITH head AS MATERIALIZED ("
    + HEAD.replace("LINES", "unnest(CAST(:keys AS text[]))").replace("AS l CROSS", "AS l(mutex_key) CROSS")
    + ")"
)

# A row without a priority names the last key, when there may be more.
FIND_FREE = Statement(
    WALK
    + ", head AS MATERIALIZED ("
    + HEAD.replace("LINES", "line")
    + """
)
SELECT c.mutex_key, c.priority FROM head AS c WHERE """
    + STARTABLE_HEAD
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
