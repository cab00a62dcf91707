"""Rights: what the user of a connection may do with the queue's tables."""

from __future__ import annotations

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import TEXT, TEXTS, Statement, table_name

# Row level security without a policy says nothing: the rows are not there, and the user seems to have all rights. Some
# who run PostgreSQL for others switch it on for each new table.
MISSING = Statement(
    """
SELECT w.name, w.privilege
FROM unnest(CAST(:names AS text[]), CAST(:privileges AS text[])) AS w(name, privilege)
WHERE NOT has_any_column_privilege(w.name, w.privilege)
UNION ALL
SELECT w.name, w.privilege || ' (row level security, and no policy)'
FROM unnest(CAST(:names AS text[]), CAST(:privileges AS text[])) AS w(name, privilege)
WHERE row_security_active(w.name) AND NOT EXISTS (
    SELECT FROM pg_policy AS p WHERE p.polrelid = CAST(w.name AS regclass))""",
    {"names": TEXTS, "privileges": TEXTS},
    {"name": TEXT, "privilege": TEXT},
)


def missing_rights(conn: Connection, /, tables: Tables) -> list[tuple[str, str]]:
    """(table, privilege) of what no claim can do without, and the user has not. The rest shows when it is needed: a
    queue without keys needs none on theirs."""
    needed = [
        (tables.jobs, "SELECT"),
        (tables.jobs, "UPDATE"),
        (tables.payloads, "SELECT"),
        (tables.version, "SELECT"),
    ]
    parameters = {"names": [table_name(table) for table, _ in needed], "privileges": [right for _, right in needed]}
    return [(row.name, row.privilege) for row in conn.execute(MISSING.on(tables), parameters)]
