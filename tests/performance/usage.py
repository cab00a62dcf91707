"""What the server says that was read and written for a queue: counts that no neighbour on the machine changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.support import wait_until

TABLES = "'sqlane_jobs', 'sqlane_payloads', 'sqlane_mutexes', 'sqlane_waits'"

# Each session reports when it ends; ours, in autocommit, would see what was true at its first look.
OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""
READ = f"""
SELECT CAST(sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)) AS bigint) AS buffers,
       (SELECT CAST(sum(idx_tup_read) AS bigint) FROM pg_stat_user_indexes WHERE relname IN ({TABLES})) AS rows,
       (SELECT CAST(sum(seq_tup_read) AS bigint) FROM pg_stat_user_tables WHERE relname IN ({TABLES})) AS unindexed,
       pg_current_wal_insert_lsn() - '0/0' AS wal
FROM pg_statio_user_tables WHERE relname IN ({TABLES})"""


class Used(NamedTuple):
    """Pages touched, index entries read, rows read without an index, and bytes of WAL of the whole server."""

    buffers: int
    rows: int
    unindexed: int
    wal: int

    def since(self, before: Used) -> Used:
        return Used(*(now - then for now, then in zip(self, before, strict=True)))


def used(admin: sa.Engine) -> Used:
    """So far, once nobody else is connected to the database of this engine, which is in autocommit."""
    with admin.connect() as conn:
        wait_until(lambda: conn.exec_driver_sql(OTHERS).scalar_one() == 0, message="the end of all sessions")
        conn.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
        row: Any = conn.exec_driver_sql(READ).one()
        return Used(int(row.buffers), int(row.rows), int(row.unindexed), int(row.wal))


def no_autovacuum(conn: sa.Connection) -> None:
    """It would write to the log when it likes; and no statistics are made."""
    for table in ("jobs", "payloads", "mutexes", "waits"):
        conn.exec_driver_sql(f"ALTER TABLE sqlane_{table} SET (autovacuum_enabled = false)")
