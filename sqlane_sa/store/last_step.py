"""The last step of a handler's own transaction: the completion of its job and COMMIT, sent together."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqlane_sa.schema import Tables
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.statement import INT, TEXT, Statement, array_literal
from sqlane_sa.store.finish import EMPTYING, UNLOCK
from sqlane_sa.store.locks import FREE
from sqlane_sa.store.together import Part, commits_after
from sqlane_sa.store.tuning import IDLE_LIMIT, idle_ms
from sqlane_sa.values.job import ClaimedJob

_NOT_OURS = "sqlane: the job is not running under this lock"
_BAD_NUMBER = "22P02"

# For the statements that follow in the transaction, which are our own. Planned while a table was small, a statement
# would scan it for as long as the plan stays. The server's wait for COMMIT has an end should that not arrive.
PIN = Statement(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), " + IDLE_LIMIT,
    {"idle_ms": INT},
)

# In contrast to COMPLETE it waits for a lock, for there is nobody to read that it was passed over: an UPDATE judges a
# row anew after the wait, as long as it finds it by its columns. And where there is nothing to complete it has to fail,
# or COMMIT would keep what the handler wrote: a number that is none does, which says why.
_MINE = "j.id = CAST(:id AS text) AND j.lock_token = CAST(:token AS text) AND coalesce(j.status, '') = 'running'"
COMPLETE_ONE = Statement(
    """
WITH kept AS (
    UPDATE {jobs} AS j SET status = 'completed', attempts = j.attempts + 1, finished_at = statement_timestamp(),
        expires_at = statement_timestamp() + j.completed_retention_ms * interval '1 millisecond', timed_out_at = NULL,
        """
    + UNLOCK
    + """
    WHERE """
    + _MINE
    + """ AND j.completed_retention_ms IS DISTINCT FROM 0
    RETURNING j.id
), dropped AS (
    DELETE FROM {jobs} AS j WHERE """
    + _MINE
    + """ AND j.completed_retention_ms = 0
    RETURNING j.id
"""
    + EMPTYING
    + f"""
SELECT CASE count(*) WHEN 1 THEN 1 ELSE CAST(concat('{_NOT_OURS}: ', count(*)) AS integer) END FROM completed""",
    {"id": TEXT, "token": TEXT},
)


def complete_and_commit(conn: Connection, tables: Tables, *, job: ClaimedJob, idle_limit: float | None) -> bool:
    """Complete a running job in the transaction of `conn` and commit that, in one round trip. False: the job does not
    run under this lock any more, and everything is rolled back.

    Where `together.sends_together`. Raises `DBAPIError`.
    """
    limit = idle_ms(idle_limit)
    parts = [
        Part.of(PIN.numbered(tables), {"idle_ms": limit}),
        Part.of(COMPLETE_ONE.numbered(tables), {"id": job.id, "token": job.lock_token}),
    ]
    if job.mutex_keys:
        held = {"ids": array_literal([job.id]), "tokens": array_literal([job.lock_token]), "channel": tables.channel}
        parts.append(Part.of(FREE.numbered(tables), held))
    try:
        with commits_after(conn, parts):
            conn.commit()
    except DBAPIError as error:
        if sqlstate(error) == _BAD_NUMBER and _NOT_OURS in str(error.orig):
            return False
        raise
    return True
