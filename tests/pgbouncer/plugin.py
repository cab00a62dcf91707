"""Passed to pytest with `-p`: the tests go through PgBouncer, and those that by their nature cannot are skipped.

Applications behind a pooler in transaction mode write `connect_args={"prepare_threshold": None}`; here one default does
it for all engines of the tests.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from tests.pgbouncer.exceptions import EXCEPTIONS

DIRECT = "SQLANE_TEST_DIRECT_URL"
USERS_OF = sa.text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = :name AND pid <> pg_backend_pid()"
)


def pytest_configure(config: pytest.Config) -> None:
    psycopg.Connection.connect.__func__.__kwdefaults__["prepare_threshold"] = None  # type: ignore[attr-defined]
    psycopg.AsyncConnection.connect.__func__.__kwdefaults__["prepare_threshold"] = None  # type: ignore[attr-defined]
    sa.event.listen(sa.Engine, "before_cursor_execute", free_template)


def free_template(conn: sa.Connection, cursor: Any, statement: str, *rest: Any) -> None:
    """The pooler keeps connections to a database that nobody uses any more, and such a one cannot be copied."""
    if not statement.startswith("CREATE DATABASE") or " TEMPLATE " not in statement:
        return
    name = statement.split(" TEMPLATE ")[1].split()[0]
    direct = sa.create_engine(os.environ[DIRECT], isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with direct.connect() as own:
        while own.scalar(USERS_OF, {"name": name}):
            pass


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, reason in EXCEPTIONS.items():
            if item.nodeid == name or item.nodeid.startswith((f"{name}[", f"{name}::")):
                item.add_marker(pytest.mark.skip(reason=f"not behind PgBouncer: {reason}"))
