"""The packaged revisions make exactly the tables that the package describes, under any name, and take them away."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from sqlane_sa import migrations
from sqlane_sa.schema import Tables
from tests.conftest import new_database
from tests.support import PARAMETER_LIKE

NAMES = [
    ("sqlane_", None),
    ("", "no_prefix"),
    ("UPPER_", "Upper"),
    ("select", "select"),
    ("with space ", "with space"),
    ('x"y', 'x"y'),
    ("%s", "%s"),
    (":p", ":p"),
    (PARAMETER_LIKE, PARAMETER_LIKE),
    ("🚂", "🚂"),
    ("\\'", "\\'"),
]

Take = Callable[[sa.Engine], set[tuple[str, str, str, str | None]]]


def differences(engine: sa.Engine, tables: Tables) -> list[Any]:
    options = {
        "compare_type": True,
        "compare_server_default": True,
        "include_schemas": tables.schema is not None,
        "include_name": lambda name, kind, _: kind != "schema" or name == tables.schema,
    }
    with engine.connect() as conn:
        return list(compare_metadata(MigrationContext.configure(conn, opts=options), tables.metadata))


@pytest.fixture(scope="module")
def two_databases(server: Any, admin: sa.Engine) -> Iterator[tuple[sa.Engine, sa.Engine]]:
    """Empty ones, which every test leaves as they were."""
    with new_database(admin, "template0") as one, new_database(admin, "template0") as two:
        engines = [sa.create_engine(server.url(name, tcp=True)) for name in (one, two)]
        yield engines[0], engines[1]
        for engine in engines:
            engine.dispose()


@pytest.mark.parametrize(("prefix", "schema"), NAMES)
def test_they_make_what_the_metadata_says(
    two_databases: tuple[sa.Engine, sa.Engine], snapshot: Take, prefix: str, schema: str | None
) -> None:
    """To the catalogue and to Alembic's comparison; and they leave nothing."""
    migrated, created = two_databases
    tables = Tables(prefix, schema)
    assert differences(migrated, tables) or schema is not None
    migrations.apply(migrated, tables)
    assert differences(migrated, tables) == []
    with created.begin() as conn:
        if schema is not None:
            conn.execute(sa.schema.CreateSchema(schema))
        tables.metadata.create_all(conn)

    def comparable(engine: sa.Engine) -> set[Any]:
        return {row for row in snapshot(engine) if row[1] != "storage"}

    assert comparable(migrated) == comparable(created)
    names = {row[2] for row in snapshot(migrated) if row[1] in ("constraint", "index")}
    assert names and all(name.startswith(prefix) for name in names)
    tables.metadata.drop_all(created)
    migrations.revert(migrated, tables)
    assert snapshot(migrated) == snapshot(created) == set()


def test_the_hot_tables_have_storage_parameters(empty: sa.Engine, snapshot: Take) -> None:
    migrations.apply(empty, Tables())
    storage = {(table, name): value for table, kind, name, value in snapshot(empty) if kind == "storage"}
    assert storage["sqlane_jobs", "fillfactor"] == "80"
    assert storage["sqlane_sleepers", "fillfactor"] == "50"
    for table in ("jobs", "payloads", "mutexes", "waits"):
        assert storage[f"sqlane_{table}", "autovacuum_vacuum_scale_factor"] == "0.01"
        assert storage[f"sqlane_{table}", "autovacuum_vacuum_threshold"] == "1000"
        assert storage[f"sqlane_{table}", "autovacuum_vacuum_cost_delay"] == "0"


def test_a_job_that_is_inserted_now_is_due_now(empty: sa.Engine) -> None:
    migrations.apply(empty, Tables())
    with empty.begin() as conn:
        late = conn.exec_driver_sql(
            "INSERT INTO sqlane_jobs (id, job_name) SELECT n::text, 'x' FROM generate_series(1, 1000) AS n "
            "RETURNING run_at > statement_timestamp()"
        )
        assert not any(late.scalars())


def test_every_packaged_revision_names_its_locks() -> None:
    for script in migrations.chain.revisions():
        assert "Locks: " in script.longdoc
        assert script.revision.removeprefix("sqlane_").isdigit()
