"""Sleepers: workers that wait for a wake-up.

A worker writes that it waits, and only then looks for work a last time: an enqueue that committed before is found by
the look, and one that starts after it sees the row and notifies. The race that is left (an enqueue that read no row,
and commits after the look) is lost until the worker looks again: a few times soon after, and then at the next poll.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, TEXT, Statement
from sqlane_sa.values.duration import seconds, to_ms

FALL_ASLEEP = Statement(
    """
INSERT INTO {sleepers} (worker_id, asleep_until)
VALUES (:worker_id, statement_timestamp() + CAST(:duration_ms AS bigint) * interval '1 millisecond')
ON CONFLICT (worker_id) DO UPDATE SET asleep_until = excluded.asleep_until""",
    {"worker_id": TEXT, "duration_ms": BIG},
)

AWAKE = Statement("DELETE FROM {sleepers} WHERE worker_id = :worker_id", {"worker_id": TEXT})

SWEEP_SLEEPERS = Statement(
    """
DELETE FROM {sleepers} WHERE worker_id = ANY(ARRAY(
    SELECT worker_id FROM {sleepers} WHERE asleep_until <= statement_timestamp() FOR UPDATE SKIP LOCKED))""",
    {},
)

WAKE = Statement(
    """
SELECT pg_notify(:channel, '') FROM (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp() LIMIT 1) AS s""",
    {"channel": TEXT},
)


def fall_asleep(conn: Connection, /, tables: Tables, *, worker_id: str, duration: float | timedelta) -> None:
    """Say that a worker waits for wake-ups, for at most `duration` seconds from now."""
    parameters = {"worker_id": worker_id, "duration_ms": to_ms(seconds(duration, "duration"))}
    conn.execute(FALL_ASLEEP.on(tables), parameters)


def awake(conn: Connection, /, tables: Tables, *, worker_id: str) -> None:
    """Say that a worker needs no wake-ups any more."""
    conn.execute(AWAKE.on(tables), {"worker_id": worker_id})


def sweep_sleepers(conn: Connection, /, tables: Tables) -> int:
    """Delete the rows of workers that died asleep; how many."""
    return conn.execute(SWEEP_SLEEPERS.on(tables)).rowcount


def wake(conn: Connection, /, tables: Tables) -> None:
    """Wake the sleeping workers when this transaction commits."""
    conn.execute(WAKE.on(tables), {"channel": tables.channel}).close()
