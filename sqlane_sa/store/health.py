"""Health: the catalogue's and the statistics' word on a queue's tables. The tables themselves are never read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Float

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, BOOL, INT, TEXT, TEXTS, Statement, table_name
from sqlane_sa.values.health import Health, Snapshot, TableHealth

WATCHED = ("jobs", "payloads", "mutexes", "waits", "sleepers")


def _age(column: str) -> str:
    """SQL for the ms since a time, also one that came a moment after this statement began; NULL for none."""
    return f"CAST(floor(abs(extract(epoch FROM statement_timestamp() - {column})) * 1000) AS bigint)"


# What holds back the removal of dead rows in this database: a snapshot, and also the mere id of a transaction that has
# written. A VACUUM counts for nobody else, and a parallel worker has its leader's. Whose session it is and how far back
# it reaches everybody may see; its state and times only members of pg_read_all_stats.
SNAPSHOT = Statement(
    f"""
WITH held AS (
    SELECT CASE WHEN r.pid IS NULL THEN 'session' ELSE 'standby' END AS kind, CAST(NULL AS text) AS name,
           a.pid, CAST(a.usename AS text) AS "user", a.application_name, a.state, a.xact_start AS began,
           greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
    FROM pg_catalog.pg_stat_activity AS a
    LEFT JOIN pg_catalog.pg_stat_replication AS r ON r.pid = a.pid AND a.datid IS NULL
    WHERE a.pid <> pg_backend_pid() AND a.leader_pid IS NULL
      AND (a.datname = current_database() OR r.pid IS NOT NULL)
      AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum AS v WHERE v.pid = a.pid)
    UNION ALL
    SELECT 'prepared transaction', gid, NULL, CAST(owner AS text), NULL, NULL, prepared, age(transaction)
    FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', CAST(s.slot_name AS text), s.active_pid, CAST(a.usename AS text), a.application_name,
           a.state, NULL, age(s.xmin)
    FROM pg_catalog.pg_replication_slots AS s LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
    WHERE s.xmin IS NOT NULL
)
SELECT kind, name, pid, "user", application_name, state, {_age("began")} AS age_ms, transactions
FROM held ORDER BY transactions DESC, began LIMIT 1""",
    {},
    {
        "kind": TEXT,
        "name": TEXT,
        "pid": INT,
        "user": TEXT,
        "application_name": TEXT,
        "state": TEXT,
        "age_ms": BIG,
        "transactions": BIG,
    },
)

# The names as data: only so does to_regclass look them up as any statement would, by the search path.
_TABLES = """
FROM unnest(CAST(:names AS text[])) WITH ORDINALITY AS i(name, place)
JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(i.name)"""

TABLES = Statement(
    f"""
SELECT CAST(c.relname AS text) AS name, s.n_live_tup AS live_rows, s.n_dead_tup AS dead_rows, s.n_tup_upd AS updates,
       s.n_tup_hot_upd AS hot_updates, pg_table_size(c.oid) AS bytes, pg_indexes_size(c.oid) AS index_bytes,
       {_age("greatest(s.last_vacuum, s.last_autovacuum)")} AS vacuum_age_ms,
       {_age("greatest(s.last_analyze, s.last_autoanalyze)")} AS analyze_age_ms
{_TABLES} JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid ORDER BY i.place""",
    {"names": TEXTS},
    {
        "name": TEXT,
        "live_rows": BIG,
        "dead_rows": BIG,
        "updates": BIG,
        "hot_updates": BIG,
        "bytes": BIG,
        "index_bytes": BIG,
        "vacuum_age_ms": BIG,
        "analyze_age_ms": BIG,
    },
)

INVALID = Statement(
    f"""
SELECT CAST(d.relname AS text) AS name
{_TABLES} JOIN pg_catalog.pg_index AS x ON x.indrelid = c.oid JOIN pg_catalog.pg_class AS d ON d.oid = x.indexrelid
WHERE NOT (x.indisvalid AND x.indisready AND x.indislive) ORDER BY 1""",
    {"names": TEXTS},
    {"name": TEXT},
)

SERVER = Statement(
    """
SELECT pg_notification_queue_usage() AS notify_queue,
       CAST(current_setting('autovacuum') AS boolean) AND CAST(current_setting('track_counts') AS boolean)
           AS autovacuum,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_others""",
    {},
    {"notify_queue": Float(), "autovacuum": BOOL, "sees_others": BOOL},
)


def health(conn: Connection, /, tables: Tables) -> Health:
    """The oldest snapshot and who holds it, dead rows, HOT share and sizes per table, invalid indexes, and how full the
    queue of notifications is.

    For any role; a table that is not there is left out. To measure a table's size its lock is waited for, where
    somebody holds it exclusively.
    """
    names: dict[str, Any] = {"names": [table_name(getattr(tables, table)) for table in WATCHED]}
    snapshot = conn.execute(SNAPSHOT.on(tables)).one_or_none()
    server = conn.execute(SERVER.on(tables)).one()
    return Health(
        snapshot=None if snapshot is None else Snapshot._make(snapshot),
        tables=tuple(TableHealth._make(row) for row in conn.execute(TABLES.on(tables), names)),
        invalid_indexes=tuple(conn.execute(INVALID.on(tables), names).scalars()),
        notify_queue=server.notify_queue,
        autovacuum=server.autovacuum,
        sees_others=server.sees_others,
    )
