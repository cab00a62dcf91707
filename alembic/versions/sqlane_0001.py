"""The first tables: jobs, payloads, mutexes, waits and sleepers.

Revision ID: sqlane_0001
Revises: nothing

Locks: the upgrade only creates tables, and takes no lock on an existing one. The downgrade drops them with an ACCESS
EXCLUSIVE lock on all of them, for which it waits a short while: stop the workers first.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, TIMESTAMP

from sqlane_sa.migrations import lock, operations, record, set_storage, target

revision = "sqlane_0001"
down_revision = None
branch_labels = ("sqlane",)
depends_on = None

TABLES = ("sleepers", "waits", "mutexes", "payloads", "jobs")
HOT_ROWS = {
    "fillfactor": 80,
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 1000,
    "autovacuum_vacuum_insert_scale_factor": 0.1,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_delay": 0,
}
ROWS_COME_AND_GO = {
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 1000,
    "autovacuum_vacuum_cost_delay": 0,
}


def upgrade() -> None:
    create_jobs()
    index_jobs()
    create_payloads()
    create_mutexes()
    create_waits()
    create_sleepers()
    record(revision)


def downgrade() -> None:
    op, at = operations(), target()
    lock(*TABLES)
    for name in TABLES:
        op.drop_table(at.prefix + name, schema=at.schema)
    record(None)


def text() -> sa.Text:
    return sa.Text(collation="C")


def moment(precision: int | None = None) -> TIMESTAMP:
    return TIMESTAMP(timezone=True, precision=precision)


def name(suffix: str) -> str:
    """The final name of a constraint or index: no naming convention of the application may change it."""
    return operations().f(target().prefix + suffix)


def create_jobs() -> None:
    op, at = operations(), target()
    table = op.create_table(
        at.prefix + "jobs",
        sa.Column("id", text(), nullable=False),
        sa.Column("job_name", text(), nullable=False),
        sa.Column("status", text(), nullable=False, server_default=sa.text("'pending'")),
        sa.Column("priority", sa.SmallInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column(
            "run_at",
            moment(3),
            nullable=False,
            # timestamptz(3) rounds, and a job enqueued now would be due up to half a millisecond from now.
            server_default=sa.text("date_trunc('milliseconds', statement_timestamp())"),
        ),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", sa.Integer(), nullable=False, server_default=sa.text("5")),
        sa.Column("stalls", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_stalls", sa.Integer(), nullable=False, server_default=sa.text("3")),
        sa.Column("mutex_keys", ARRAY(text()), nullable=True),
        sa.Column("failure_job", text(), nullable=True),
        sa.Column("lock_token", text(), nullable=True),
        sa.Column("locked_by", text(), nullable=True),
        sa.Column("locked_until", moment(), nullable=True),
        sa.Column("started_at", moment(), nullable=True),
        sa.Column("timed_out_at", moment(), nullable=True),
        sa.Column("finished_at", moment(), nullable=True),
        sa.Column("expires_at", moment(), nullable=True),
        sa.Column("completed_retention_ms", sa.BigInteger(), nullable=True, server_default=sa.text("86400000")),
        sa.Column("failed_retention_ms", sa.BigInteger(), nullable=True, server_default=sa.text("1209600000")),
        sa.Column("last_error", JSONB(), nullable=True),
        sa.Column("created_at", moment(), nullable=False, server_default=sa.text("statement_timestamp()")),
        sa.Column("updated_at", moment(), nullable=False, server_default=sa.text("statement_timestamp()")),
        sa.PrimaryKeyConstraint("id", name=name("jobs_pkey")),
        sa.CheckConstraint("status IN ('pending', 'running', 'completed', 'failed')", name=name("jobs_status")),
        schema=at.schema,
    )
    set_storage(table, HOT_ROWS)


def index_jobs() -> None:
    op, at = operations(), target()
    for suffix, columns, where in (
        ("pending", ["job_name", "priority", "run_at", "id"], "status = 'pending' AND mutex_keys IS NULL"),
        ("pending_keyed", ["job_name", "priority", "run_at", "id"], "status = 'pending' AND mutex_keys IS NOT NULL"),
        ("running", ["locked_until", "id"], "status = 'running'"),
        ("failed", ["job_name", "id"], "status = 'failed'"),
        ("expires", ["expires_at"], "expires_at IS NOT NULL"),
    ):
        op.create_index(
            name("jobs_" + suffix), at.prefix + "jobs", columns, schema=at.schema, postgresql_where=sa.text(where)
        )


def create_payloads() -> None:
    op, at = operations(), target()
    table = op.create_table(
        at.prefix + "payloads",
        sa.Column("id", text(), nullable=False),
        sa.Column("payload", JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=name("payloads_pkey")),
        sa.CheckConstraint("octet_length(CAST(payload AS text)) <= 16777216", name=name("payloads_size")),
        schema=at.schema,
    )
    set_storage(table, ROWS_COME_AND_GO)


def create_mutexes() -> None:
    op, at = operations(), target()
    table = op.create_table(
        at.prefix + "mutexes",
        sa.Column("mutex_key", text(), nullable=False),
        sa.Column("job_id", text(), nullable=False),
        sa.Column("lock_token", text(), nullable=False),
        sa.Column("held_until", moment(), nullable=True),
        sa.Column("created_at", moment(), nullable=False, server_default=sa.text("statement_timestamp()")),
        sa.PrimaryKeyConstraint("mutex_key", name=name("mutexes_pkey")),
        schema=at.schema,
    )
    set_storage(table, ROWS_COME_AND_GO)
    op.create_index(name("mutexes_job"), table.name, ["job_id"], schema=at.schema)
    op.create_index(
        name("mutexes_lingers"),
        table.name,
        ["held_until"],
        schema=at.schema,
        postgresql_where=sa.text("held_until IS NOT NULL"),
    )


def create_waits() -> None:
    op, at = operations(), target()
    table = op.create_table(
        at.prefix + "waits",
        sa.Column("mutex_key", text(), nullable=False),
        sa.Column("run_at", moment(3), nullable=False),
        sa.Column("job_id", text(), nullable=False),
        sa.PrimaryKeyConstraint("mutex_key", "run_at", "job_id", name=name("waits_pkey")),
        schema=at.schema,
    )
    set_storage(table, ROWS_COME_AND_GO)


def create_sleepers() -> None:
    op, at = operations(), target()
    table = op.create_table(
        at.prefix + "sleepers",
        sa.Column("worker_id", text(), nullable=False),
        sa.Column("asleep_until", moment(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name=name("sleepers_pkey")),
        schema=at.schema,
    )
    set_storage(table, {"fillfactor": 50})
