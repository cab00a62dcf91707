"""Recall: the jobs of a claim whose commit was never acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, INT, TEXTS, Statement
from sqlane_sa.store.claimed import CLAIMED_WITH_PAYLOADS, IN_ORDER, READ_CLAIMED, WITH_PAYLOADS, claimed_jobs
from sqlane_sa.store.payloads import INLINE_BYTES
from sqlane_sa.values.duration import seconds, to_ms
from sqlane_sa.values.job import ClaimedJob

# By the partial index of what runs: there is none by token, and it would cost each claim for a rare case.
RECALL = Statement(
    f"""
WITH found AS MATERIALIZED (
    SELECT id FROM {{jobs}} WHERE status = 'running' AND lock_token = ANY(CAST(:lock_tokens AS text[]))
    ORDER BY id FOR NO KEY UPDATE
), started AS (
    UPDATE {{jobs}} SET locked_until = statement_timestamp() + CAST(:lease_ms AS bigint) * interval '1 millisecond',
        updated_at = statement_timestamp()
    WHERE id = ANY(ARRAY(SELECT id FROM found))
    RETURNING {READ_CLAIMED}){WITH_PAYLOADS}{IN_ORDER}""",
    {"lock_tokens": TEXTS, "lease_ms": BIG, "inline_bytes": INT},
    CLAIMED_WITH_PAYLOADS,
)


def recall(
    conn: Connection, /, tables: Tables, *, lock_tokens: Sequence[str], lease: float | timedelta
) -> list[ClaimedJob]:
    """The jobs that run under these tokens, with a new lease (seconds) from now. Safe to repeat.

    For a claim whose COMMIT got no answer: its token tells whether it took place. Returns them like `claim_plain`, and
    nothing where it did not, or where the jobs have been recovered since.
    """
    parameters = {
        "lock_tokens": list(lock_tokens),
        "lease_ms": to_ms(seconds(lease, "lease")),
        "inline_bytes": INLINE_BYTES,
    }
    return claimed_jobs(conn.execute(RECALL.on(tables), parameters))
