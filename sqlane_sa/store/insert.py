"""Insert: many new jobs, their payloads and their places in the lines of their keys, in one statement per chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, BIGS, INTS, TEXT, TEXTS, Statement, Types, array_literal
from sqlane_sa.store.insert_one import OPTIONS, insert_one, options_of, utc
from sqlane_sa.values.ids import new_ids
from sqlane_sa.values.job import Enqueued, NewJob

CHUNK_ROWS = 2000
CHUNK_CHARS = 8 * 1024 * 1024
"""A chunk ends at whichever comes first, so that neither the parameters nor the server's memory grow with the batch."""

_BINDS: Types = {
    "ids": TEXTS,
    "names": TEXTS,
    "payloads": TEXTS,
    "priorities": INTS,
    "run_ats": TEXTS,
    "delays_ms": BIGS,
    "mutex_keys": TEXTS,
    "max_attempts": INTS,
    "max_stalls": INTS,
    "failure_jobs": TEXTS,
    "completed_retentions_ms": BIGS,
    "failed_retentions_ms": BIGS,
    "channel": TEXT,
}

_INPUT = """
WITH input AS MATERIALIZED (
    SELECT i.id, i.job_name, i.payload, i.priority, CAST(i.mutex_keys AS text[]) AS mutex_keys, i.max_attempts,
           i.max_stalls, i.failure_job, i.completed_retention_ms, i.failed_retention_ms,
           -- timestamptz(3) rounds: up to the next millisecond, a job that is due now would not be due yet.
           date_trunc('milliseconds', coalesce(
               CAST(i.run_at AS timestamptz),
               statement_timestamp() + i.delay_ms * interval '1 millisecond')) AS run_at
    FROM unnest(CAST(:ids AS text[]), CAST(:names AS text[]), CAST(:payloads AS text[]),
                CAST(:priorities AS integer[]), CAST(:run_ats AS text[]), CAST(:delays_ms AS bigint[]),
                CAST(:mutex_keys AS text[]), CAST(:max_attempts AS integer[]), CAST(:max_stalls AS integer[]),
                CAST(:failure_jobs AS text[]), CAST(:completed_retentions_ms AS bigint[]),
                CAST(:failed_retentions_ms AS bigint[]))
         AS i(id, job_name, payload, priority, run_at, delay_ms, mutex_keys, max_attempts, max_stalls, failure_job,
              completed_retention_ms, failed_retention_ms)
), new_jobs AS (
    INSERT INTO {jobs} (id, job_name, status, priority, run_at, attempts, max_attempts, stalls, max_stalls,
                        mutex_keys, failure_job, completed_retention_ms, failed_retention_ms, created_at, updated_at)
    SELECT id, job_name, 'pending', priority, run_at, 0, max_attempts, 0, max_stalls,
           mutex_keys, failure_job, completed_retention_ms, failed_retention_ms,
           statement_timestamp(), statement_timestamp()
    FROM input"""

_REST = """
), new_payloads AS (
    INSERT INTO {payloads} (id, payload) SELECT id, CAST(payload AS json) FROM SOURCE ON_ORPHAN
), new_waits AS (
    INSERT INTO {waits} (mutex_key, run_at, job_id)
    SELECT k.mutex_key, s.run_at, s.id FROM SOURCE AS s CROSS JOIN LATERAL unnest(s.mutex_keys) AS k(mutex_key)
    ON CONFLICT DO NOTHING
), woken AS (
    SELECT pg_notify(:channel, '') FROM (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp() LIMIT 1) AS s
)"""

# Neither RETURNING nor a conflict target: a role that may only INSERT (and read sleepers) can enqueue.
INSERT_NEW = Statement(
    _INPUT + _REST.replace("SOURCE", "input").replace("ON_ORPHAN", "") + "\nSELECT count(*) FROM woken", _BINDS
)

# The caller gave ids, so that an enqueue whose outcome it does not know can be repeated. A payload may be left over
# from a job of that id that somebody deleted by hand: the new one takes its place.
INSERT_KNOWN = Statement(
    _INPUT
    + """
    ON CONFLICT (id) DO NOTHING RETURNING id
), created AS (
    SELECT i.* FROM input AS i JOIN new_jobs AS n ON n.id = i.id"""
    + _REST.replace("SOURCE", "created").replace(
        "ON_ORPHAN", "ON CONFLICT (id) DO UPDATE SET payload = excluded.payload"
    )
    + "\nSELECT id, (SELECT count(*) FROM woken) AS woken FROM created",
    _BINDS,
    {"id": TEXT, "woken": BIG},
)


# Most batches differ in their payloads alone.
INSERT_ALIKE = Statement(
    """
WITH new_jobs AS (
    INSERT INTO {jobs} (id, job_name, status, priority, run_at, attempts, max_attempts, stalls, max_stalls,
                        failure_job, completed_retention_ms, failed_retention_ms, created_at, updated_at)
    SELECT i.id, CAST(:name AS text), 'pending', CAST(:priority AS smallint), date_trunc('milliseconds',
               statement_timestamp() + CAST(:delay_ms AS bigint) * interval '1 millisecond'),
           0, CAST(:max_attempts AS integer), 0, CAST(:max_stalls AS integer), CAST(:failure_job AS text),
           CAST(:completed_retention_ms AS bigint), CAST(:failed_retention_ms AS bigint),
           statement_timestamp(), statement_timestamp()
    FROM unnest(CAST(:ids AS text[])) AS i(id)
), new_payloads AS (
    INSERT INTO {payloads} (id, payload)
    SELECT i.id, CAST(i.payload AS json) FROM unnest(CAST(:ids AS text[]), CAST(:payloads AS text[])) AS i(id, payload)
), woken AS (
    SELECT pg_notify(:channel, '') FROM (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp() LIMIT 1) AS s
)
SELECT count(*) FROM woken""",
    {"ids": TEXTS, "payloads": TEXTS, "channel": TEXT, **OPTIONS},
)

_all_but_payload = attrgetter(*OPTIONS, "mutex_keys", "run_at")


def insert_jobs(conn: Connection, /, tables: Tables, *, jobs: Iterable[NewJob]) -> list[Enqueued]:
    """Insert jobs with their payloads, at most 2,000 per statement, and wake a waiting worker at commit.

    Returns one `Enqueued(id, created)` per job in input order; `created` is False where a job with the given id
    already existed (it is left as it is). Jobs without an id get monotonic ULIDs in input order.
    """
    given = list(jobs)
    if all(job.id is None for job in given):
        return [Enqueued(id_, True) for id_ in _insert_new(conn, tables, given)]
    # Known ids in one order, so that two batches of the same ids wait for each other and do not deadlock.
    order = sorted(range(len(given)), key=lambda index: given[index].id or "")
    inserted: list[Enqueued] = []
    for chunk in _chunks(given[index] for index in order):
        inserted += _insert_known(conn, tables, chunk)
    results = dict(zip(order, inserted, strict=True))
    return [results[index] for index in range(len(given))]


def _insert_new(conn: Connection, tables: Tables, jobs: Sequence[NewJob]) -> list[str]:
    if len(jobs) == 1:
        return [insert_one(conn, tables, jobs[0])]
    ids: list[str] = []
    for chunk in _chunks(jobs):
        fresh = new_ids(len(chunk))
        if _are_alike(chunk):
            conn.execute(INSERT_ALIKE.on(tables), _shared_parameters(tables, fresh, chunk)).close()
        else:
            conn.execute(INSERT_NEW.on(tables), _parameters(tables, fresh, chunk)).close()
        ids += fresh
    return ids


def _are_alike(jobs: Sequence[NewJob]) -> bool:
    first = jobs[0]
    return not first.mutex_keys and first.run_at is None and len(set(map(_all_but_payload, jobs))) == 1


def _insert_known(conn: Connection, tables: Tables, jobs: Sequence[NewJob]) -> list[Enqueued]:
    fresh = iter(new_ids(sum(job.id is None for job in jobs)))
    ids = [next(fresh) if job.id is None else job.id for job in jobs]
    first = {id_: index for index, id_ in reversed(list(enumerate(ids)))}
    unique = sorted(first.values())
    parameters = _parameters(tables, [ids[i] for i in unique], [jobs[i] for i in unique])
    created = set(conn.execute(INSERT_KNOWN.on(tables), parameters).scalars())
    return [Enqueued(id_, id_ in created and first[id_] == index) for index, id_ in enumerate(ids)]


def _chunks(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    chunk: list[NewJob] = []
    chars = 0
    for job in jobs:
        if chunk and (len(chunk) >= CHUNK_ROWS or chars + len(job.payload) > CHUNK_CHARS):
            yield chunk
            chunk, chars = [], 0
        chunk.append(job)
        chars += len(job.payload)
    if chunk:
        yield chunk


def _shared_parameters(tables: Tables, ids: list[str], jobs: Sequence[NewJob]) -> dict[str, Any]:
    payloads = [job.payload for job in jobs]
    return {"ids": ids, "payloads": payloads, "channel": tables.channel, **options_of(jobs[0])}


def _parameters(tables: Tables, ids: list[str], jobs: Sequence[NewJob]) -> dict[str, Any]:
    return {
        "ids": ids,
        "names": [job.name for job in jobs],
        "payloads": [job.payload for job in jobs],
        "priorities": [job.priority for job in jobs],
        "run_ats": [utc(job.run_at) for job in jobs],
        "delays_ms": [job.delay_ms for job in jobs],
        # As literals: unnest() would flatten an array of arrays.
        "mutex_keys": [array_literal(dict.fromkeys(job.mutex_keys)) if job.mutex_keys else None for job in jobs],
        "max_attempts": [job.max_attempts for job in jobs],
        "max_stalls": [job.max_stalls for job in jobs],
        "failure_jobs": [job.failure_job for job in jobs],
        "completed_retentions_ms": [job.completed_retention_ms for job in jobs],
        "failed_retentions_ms": [job.failed_retention_ms for job in jobs],
        "channel": tables.channel,
    }
