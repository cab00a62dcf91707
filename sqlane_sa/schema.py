"""The tables of one queue: `Table` objects for a prefix and a schema.

The DDL itself lives in the Alembic revisions, with the storage parameters; a test keeps the two equal.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, TIMESTAMP

from sqlane_sa.values.errors import DefinitionError

MAX_IDENTIFIER_BYTES = 63
"""PostgreSQL cuts longer identifiers silently (NAMEDATALEN - 1)."""

REVISION = "sqlane_0001"
"""The packaged revision that makes these tables: what a database is at that this code can work on."""

STATUSES = ("pending", "running", "completed", "failed")
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024

PLACE = "sqlane_sa"
"""In the `info` of a queue's metadata: its (prefix, schema), by which the migrations know it for a queue's."""

# What SQLAlchemy takes for a parameter wherever it stands, with drivers whose parameters have no names.
_MARKS = ("__[POSTCOMPILE_",) if sa.__version__ >= "2.1" else ("__[POSTCOMPILE_", "%(")


def text() -> sa.Text:
    """Text in byte order: index conditions and `ORDER BY` then agree with Python's order of the same strings."""
    return sa.Text(collation="C")


def moment(precision: int | None = None) -> TIMESTAMP:
    return TIMESTAMP(timezone=True, precision=precision)


class Tables:
    """The `Table` objects of one queue.

    `jobs`, `payloads`, `mutexes`, `waits`, `sleepers` and `version` (the revision they are at) carry `prefix` and
    `schema`; `metadata` holds them all, and `rendered` the statements of the store already rendered for them.
    Raises `DefinitionError` when an identifier would pass 63 bytes or cannot be one.
    """

    def __init__(self, prefix: str = "sqlane_", schema: str | None = None) -> None:
        _check_identifier(prefix, "prefix", empty=True)
        if schema is not None:
            _check_identifier(schema, "schema")
            _refuse_reserved(schema)
        self.prefix = prefix
        self.schema = schema
        self.metadata = sa.MetaData(schema=schema, info={PLACE: (prefix, schema)})
        self.jobs = self._jobs()
        self.payloads = self._payloads()
        self.mutexes = self._mutexes()
        self.waits = self._waits()
        self.sleepers = self._sleepers()
        self.version = self._version()
        self.rendered: dict[Any, Any] = {}
        self._check_lengths()

    @cached_property
    def channel(self) -> str:
        """The NOTIFY channel: a digest, because prefix and schema together may pass the 63 bytes of a channel name."""
        place = f"{self.schema or ''}\0{self.prefix}".encode()
        return "sqlane_" + hashlib.sha256(place).hexdigest()[:24]

    def _jobs(self) -> sa.Table:
        now = sa.text("statement_timestamp()")
        table = sa.Table(
            self.prefix + "jobs",
            self.metadata,
            sa.Column("id", text(), nullable=False),
            sa.Column("job_name", text(), nullable=False),
            sa.Column("status", text(), nullable=False, server_default=sa.text("'pending'")),
            sa.Column("priority", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
            sa.Column(
                "run_at",
                moment(3),
                nullable=False,
                server_default=sa.text("date_trunc('milliseconds', statement_timestamp())"),
            ),
            sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
            sa.Column("max_attempts", sa.Integer, nullable=False, server_default=sa.text("5")),
            sa.Column("stalls", sa.Integer, nullable=False, server_default=sa.text("0")),
            sa.Column("max_stalls", sa.Integer, nullable=False, server_default=sa.text("3")),
            sa.Column("mutex_keys", ARRAY(text())),
            sa.Column("failure_job", text()),
            sa.Column("lock_token", text()),
            sa.Column("locked_by", text()),
            sa.Column("locked_until", moment()),
            sa.Column("started_at", moment()),
            sa.Column("timed_out_at", moment()),
            sa.Column("finished_at", moment()),
            sa.Column("expires_at", moment()),
            sa.Column("completed_retention_ms", sa.BigInteger, server_default=sa.text("86400000")),
            sa.Column("failed_retention_ms", sa.BigInteger, server_default=sa.text("1209600000")),
            sa.Column("last_error", JSONB),
            sa.Column("created_at", moment(), nullable=False, server_default=now),
            sa.Column("updated_at", moment(), nullable=False, server_default=now),
            sa.PrimaryKeyConstraint("id", name=self.prefix + "jobs_pkey"),
            sa.CheckConstraint(
                "status IN ('pending', 'running', 'completed', 'failed')", name=self.prefix + "jobs_status"
            ),
        )
        self._index_jobs(table)
        return table

    def _index_jobs(self, jobs: sa.Table) -> None:
        """Two pending indexes, and each job is in one of them: a claim of unkeyed jobs never walks past keyed ones."""
        due_order = (jobs.c.job_name, jobs.c.priority, jobs.c.run_at, jobs.c.id)
        for name, columns, where in (
            ("pending", due_order, "status = 'pending' AND mutex_keys IS NULL"),
            ("pending_keyed", due_order, "status = 'pending' AND mutex_keys IS NOT NULL"),
            ("running", (jobs.c.locked_until, jobs.c.id), "status = 'running'"),
            ("failed", (jobs.c.job_name, jobs.c.id), "status = 'failed'"),
            ("expires", (jobs.c.expires_at,), "expires_at IS NOT NULL"),
        ):
            sa.Index(f"{self.prefix}jobs_{name}", *columns, postgresql_where=sa.text(where))

    def _payloads(self) -> sa.Table:
        """No foreign key: it would cost a lock and a lookup on the hot row with each write."""
        return sa.Table(
            self.prefix + "payloads",
            self.metadata,
            sa.Column("id", text(), nullable=False),
            sa.Column("payload", JSON, nullable=False),
            sa.PrimaryKeyConstraint("id", name=self.prefix + "payloads_pkey"),
            sa.CheckConstraint(
                f"octet_length(CAST(payload AS text)) <= {MAX_PAYLOAD_BYTES}", name=self.prefix + "payloads_size"
            ),
        )

    def _mutexes(self) -> sa.Table:
        table = sa.Table(
            self.prefix + "mutexes",
            self.metadata,
            sa.Column("mutex_key", text(), nullable=False),
            sa.Column("job_id", text(), nullable=False),
            sa.Column("lock_token", text(), nullable=False),
            sa.Column("held_until", moment()),
            sa.Column("created_at", moment(), nullable=False, server_default=sa.text("statement_timestamp()")),
            sa.PrimaryKeyConstraint("mutex_key", name=self.prefix + "mutexes_pkey"),
        )
        sa.Index(f"{self.prefix}mutexes_job", table.c.job_id)
        sa.Index(
            f"{self.prefix}mutexes_lingers", table.c.held_until, postgresql_where=sa.text("held_until IS NOT NULL")
        )
        return table

    def _waits(self) -> sa.Table:
        """One row per key of each pending job: the line of a key, so that "is an older job ahead?" is one probe."""
        return sa.Table(
            self.prefix + "waits",
            self.metadata,
            sa.Column("mutex_key", text(), nullable=False),
            sa.Column("run_at", moment(3), nullable=False),
            sa.Column("job_id", text(), nullable=False),
            sa.PrimaryKeyConstraint("mutex_key", "run_at", "job_id", name=self.prefix + "waits_pkey"),
        )

    def _sleepers(self) -> sa.Table:
        """Workers that wait for a wake-up. Enqueues notify only when one is here: NOTIFY takes a database-wide lock."""
        return sa.Table(
            self.prefix + "sleepers",
            self.metadata,
            sa.Column("worker_id", text(), nullable=False),
            sa.Column("asleep_until", moment(), nullable=False),
            sa.PrimaryKeyConstraint("worker_id", name=self.prefix + "sleepers_pkey"),
        )

    def _version(self) -> sa.Table:
        """The migrations' own: which revision the tables are at. Beside them, so that each queue has one of its own."""
        return sa.Table(
            self.prefix + "version",
            self.metadata,
            sa.Column("version_num", sa.Text, nullable=False),
            sa.PrimaryKeyConstraint("version_num", name=self.prefix + "version_pkey"),
        )

    def _check_lengths(self) -> None:
        longest = max(_identifiers(self.metadata), key=_length)
        if _length(longest) > MAX_IDENTIFIER_BYTES:
            room = MAX_IDENTIFIER_BYTES - (_length(longest) - _length(self.prefix))
            raise DefinitionError(
                f"prefix {self.prefix!r} has {_length(self.prefix)} bytes, and PostgreSQL would cut the name "
                f"{longest!r}; use at most {room} bytes",
                option="prefix",
                value=self.prefix,
            )


def _identifiers(metadata: sa.MetaData) -> list[str]:
    tables = metadata.tables.values()
    parts = [part for table in tables for part in (*table.indexes, *table.constraints)]
    return [table.name for table in tables] + [str(getattr(part, "name", None)) for part in parts]


def _length(identifier: str) -> int:
    return len(identifier.encode())


def _check_identifier(value: object, option: str, *, empty: bool = False) -> None:
    problem = _identifier_problem(value, empty)
    if problem:
        raise DefinitionError(f"{option}={value!r} {problem}", option=option, value=value)


def _refuse_reserved(schema: str) -> None:
    if schema.startswith("pg_"):
        raise DefinitionError(
            f"schema={schema!r} begins with pg_, and PostgreSQL keeps such schemas for itself; use another name",
            option="schema",
            value=schema,
        )


def _identifier_problem(value: object, empty: bool) -> str | None:
    if not isinstance(value, str):
        return "is not a string; use a name of a PostgreSQL schema or the start of a table name"
    if not value and not empty:
        return "is empty; leave it out (None) for the connection's search path"
    if "\0" in value:
        return "holds a NUL character, which PostgreSQL cannot store in a name; leave it out"
    for mark in _MARKS:
        if mark in value:
            return f"holds {mark!r}, which SQLAlchemy {sa.__version__} takes for a parameter; leave it out"
    try:
        length = _length(value)
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is not a character; leave it out"
    if length > MAX_IDENTIFIER_BYTES:
        return f"has {length} bytes; PostgreSQL names have at most {MAX_IDENTIFIER_BYTES}"
    return None
