"""Copying: very many new jobs, their payloads and their places in the lines of their keys, by COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, Statement, array_literal
from sqlane_sa.store.drivers import check_copy, copy_in
from sqlane_sa.store.insert_one import OPTIONS
from sqlane_sa.store.sleepers import wake
from sqlane_sa.values.errors import InvalidJobError
from sqlane_sa.values.ids import new_ids
from sqlane_sa.values.job import NewJob

BLOCK_CHARS = 256 * 1024
OPTIONS_KEPT = 1000
NULL = "\\N"

# COPY takes no expressions: a delay is added here, to the database's time.
NOW = Statement(
    "SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint) AS micros", {}, {"micros": BIG}
)

COPY_JOBS = Statement(
    """COPY {jobs} (id, job_name, priority, run_at, max_attempts, max_stalls, failure_job, completed_retention_ms,
                    failed_retention_ms, mutex_keys) FROM STDIN""",
    {},
)
COPY_PAYLOADS = Statement("COPY {payloads} (id, payload) FROM STDIN", {})
COPY_WAITS = Statement("COPY {waits} (mutex_key, run_at, job_id) FROM STDIN", {})

_options = attrgetter(*OPTIONS, "run_at")


def copy_jobs(conn: Connection, /, tables: Tables, *, jobs: Sequence[NewJob]) -> list[str]:
    """Insert jobs with their payloads by COPY, and wake a waiting worker at commit; returns their new ids in order.

    Raises `HandleError` where the driver is not psycopg, and `InvalidJobError` for a job with a given id, which may be
    there already: COPY passes over none. Both before anything is sent.
    """
    check_copy(conn)
    _refuse_ids(jobs)
    if not jobs:
        return []
    ids, times = new_ids(len(jobs)), _Times(conn, tables)
    _copy(conn, tables, COPY_JOBS, _job_lines(ids, times, jobs))
    _copy(conn, tables, COPY_PAYLOADS, _payload_lines(ids, jobs))
    if any(job.mutex_keys for job in jobs):
        _copy(conn, tables, COPY_WAITS, _wait_lines(ids, times, jobs))
    wake(conn, tables)
    return ids


def _copy(conn: Connection, tables: Tables, statement: Statement, lines: Iterator[str]) -> None:
    copy_in(conn, str(statement.on(tables)), _blocks(lines))


def _blocks(lines: Iterator[str]) -> Iterator[str]:
    """A write for each line would take longer than all the rest; large payloads are sent as they come."""
    block: list[str] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size > BLOCK_CHARS:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def _refuse_ids(jobs: Sequence[NewJob]) -> None:
    for index, job in enumerate(jobs):
        if job.id is not None:
            message = "is given, and COPY cannot pass over one that exists; leave it out, or leave out copy=True"
            raise InvalidJobError(message, place=f"jobs[{index}].id", value=job.id)


class _Times:
    """When jobs are due, as text, from the database's time at the beginning."""

    def __init__(self, conn: Connection, tables: Tables) -> None:
        micros = conn.execute(NOW.on(tables)).scalar_one()
        self.now = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)

    def run_at(self, job: NewJob) -> str:
        """In milliseconds, like the column, and cut: a time that it rounded up would not be due yet."""
        moment = self.now + timedelta(milliseconds=job.delay_ms) if job.run_at is None else job.run_at.astimezone(UTC)
        return moment.isoformat(timespec="milliseconds")


def _job_lines(ids: Sequence[str], times: _Times, jobs: Sequence[NewJob]) -> Iterator[str]:
    """The columns after the id are the same text for all jobs with the same options."""
    texts: dict[tuple[object, ...], str] = {}
    for id_, job in zip(ids, jobs, strict=True):
        key = _options(job)
        text = texts.get(key)
        if text is None:
            if len(texts) >= OPTIONS_KEPT:
                texts.clear()
            text = texts[key] = _options_text(job, times)
        keys = _escaped(array_literal(dict.fromkeys(job.mutex_keys))) if job.mutex_keys else NULL
        yield f"{id_}\t{text}\t{keys}\n"


def _options_text(job: NewJob, times: _Times) -> str:
    values = (
        job.name,
        job.priority,
        times.run_at(job),
        job.max_attempts,
        job.max_stalls,
        job.failure_job,
        job.completed_retention_ms,
        job.failed_retention_ms,
    )
    return "\t".join([NULL if value is None else _escaped(str(value)) for value in values])


def _payload_lines(ids: Sequence[str], jobs: Sequence[NewJob]) -> Iterator[str]:
    for id_, job in zip(ids, jobs, strict=True):
        yield f"{id_}\t{_escaped(job.payload)}\n"


def _wait_lines(ids: Sequence[str], times: _Times, jobs: Sequence[NewJob]) -> Iterator[str]:
    for id_, job in zip(ids, jobs, strict=True):
        if job.mutex_keys:
            run_at = times.run_at(job)
            for key in dict.fromkeys(job.mutex_keys):
                yield f"{_escaped(key)}\t{run_at}\t{id_}\n"


def _escaped(text: str) -> str:
    """What ends a column or a row, or begins an escape, in the text format of COPY."""
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if text.isprintable():  # in ASCII or not, no control character
        return text
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
