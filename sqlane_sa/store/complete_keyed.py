"""Complete jobs and free their keys, in one statement: the ordinary end of a job with mutex keys.

In a statement of its own, a completion would be read, sent, and waited for twice. Both parts see one snapshot, and lock
in the order of all others: first the rows of the jobs, then those of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import TEXT, TEXTS, Statement
from sqlane_sa.store.finish import COMPLETING
from sqlane_sa.store.locks import PAIRS, WAKING, Locked, pairs


class Holder(Locked, Protocol):
    """A job with all of its keys, as a worker holds it."""

    @property
    def mutex_keys(self) -> Sequence[str] | None: ...


# The jobs of this process know their keys, so that each is one probe of the primary key. Only those of the completed
# are freed: a job that was passed over runs on under its keys, in the eyes of all others. That some are missing is so
# rare that comparing each with each does not matter then. How many there should be is a subquery, to be read once: a
# cast of a parameter is made anew for each row.
#
# The holds are locked in the order of the keys, and stand still from then on. One that has moved since the statement
# began, which only a linger of the same lock could bring about, is not seen at its new place, and ends by itself.
COMPLETE_KEYED = Statement(
    "WITH"
    + COMPLETING
    + """, held AS MATERIALIZED (
    SELECT h.ctid FROM (
        SELECT k.mutex_key COLLATE "C" AS mutex_key, k.id, k.lock_token
        FROM unnest(CAST(:keys AS text[]), CAST(:owners AS text[]), CAST(:owner_tokens AS text[]))
             AS k(mutex_key, id, lock_token)
        WHERE (SELECT count(*) FROM completed) = (SELECT cardinality(CAST(:ids AS text[])))
           OR k.id = ANY(ARRAY(SELECT id FROM completed))
        ORDER BY k.mutex_key COLLATE "C") AS i
    CROSS JOIN LATERAL (
        SELECT h.ctid FROM {mutexes} AS h
        WHERE h.mutex_key = i.mutex_key AND h.job_id = i.id AND h.lock_token = i.lock_token FOR UPDATE) AS h
), freed AS (
    DELETE FROM {mutexes} WHERE ctid = ANY(ARRAY(SELECT ctid FROM held)) RETURNING mutex_key
), """
    + WAKING
    + """
SELECT c.id FROM completed AS c CROSS JOIN (SELECT count(*) FROM woken) AS w""",
    {**PAIRS, "keys": TEXTS, "owners": TEXTS, "owner_tokens": TEXTS, "channel": TEXT},
    {"id": TEXT},
)


def complete_keyed(conn: Connection, /, tables: Tables, *, jobs: Sequence[Holder]) -> list[str]:
    """`complete` for jobs that know their keys, in one statement. The ids changed.

    Jobs that another transaction has locked, or that are not ours any more, are passed over with their keys; for a
    locked key it waits.
    """
    changed: list[str] = []
    while jobs:
        # Each job once: its id then says which lock it was completed under, and so whose holds are freed.
        once = {job.id: job for job in jobs}
        changed += _complete(conn, tables, list(once.values()))
        jobs = [job for job in jobs if once[job.id] is not job]
    return changed


def _complete(conn: Connection, tables: Tables, jobs: Sequence[Holder]) -> list[str]:
    holds = [(key, job.id, job.lock_token) for job in jobs for key in job.mutex_keys or ()]
    parameters = {
        **pairs(jobs),
        "keys": [key for key, _, _ in holds],
        "owners": [id_ for _, id_, _ in holds],
        "owner_tokens": [token for _, _, token in holds],
        "channel": tables.channel,
    }
    return [row[0] for row in conn.execute(COMPLETE_KEYED.on(tables), parameters).all()]
