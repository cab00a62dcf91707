"""A role of a test, with what is set for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from tests.faults import load_worker


@contextmanager
def new_role(admin: sa.Engine, url: str) -> Iterator[str]:
    """The name of a role that may use all tables of the database of `url`; it is dropped after the block."""
    role = f"sqlane_role_{uuid.uuid4().hex}"
    in_database = sa.create_engine(url, poolclass=sa.NullPool)
    with in_database.begin() as conn:
        conn.exec_driver_sql(load_worker.LEDGER)
        conn.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'sqlane'")
        conn.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        conn.exec_driver_sql(f"GRANT USAGE ON SEQUENCE move_number TO {role}")
    try:
        yield role
    finally:
        with in_database.begin() as conn:
            conn.exec_driver_sql(f"DROP OWNED BY {role}")
        with admin.connect() as conn:
            conn.exec_driver_sql(f"DROP ROLE {role}")


def url_of(role: str, url: str) -> str:
    return sa.make_url(url).set(username=role, password="sqlane").render_as_string(hide_password=False)
