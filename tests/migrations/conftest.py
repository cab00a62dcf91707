"""Empty databases, a second packaged revision, and an application's own Alembic chain."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from sqlane_sa.migrations import chain
from sqlane_sa.worker import readiness
from tests.conftest import new_database as database

SECOND_REVISION = """
import sqlalchemy as sa
from sqlane_sa.migrations import lock, operations, record, target

revision = "sqlane_0002"
down_revision = "sqlane_0001"


def upgrade():
    op, at = operations(), target()
    lock("sleepers", "jobs")
    op.add_column(at.prefix + "sleepers", sa.Column("extra", sa.Text()), schema=at.schema)
    jobs = at.prefix + "jobs"
    op.add_column(jobs, sa.Column("extra", sa.Integer(), nullable=False, server_default="0"), schema=at.schema)
    op.alter_column(jobs, "extra", server_default="1", schema=at.schema)
    op.create_check_constraint(op.f(at.prefix + "jobs_extra"), jobs, "extra < 9", schema=at.schema)
    op.create_index(op.f(at.prefix + "jobs_by_extra"), jobs, ["extra", "id"], schema=at.schema)
    record(revision)


def downgrade():
    op, at = operations(), target()
    lock("sleepers", "jobs")
    op.drop_column(at.prefix + "sleepers", "extra", schema=at.schema)
    # With its index and constraint.
    op.drop_column(at.prefix + "jobs", "extra", schema=at.schema)
    record("sqlane_0001")
"""

ENVIRONMENT = """
import sqlalchemy as sa
from alembic import context

attributes = context.config.attributes
if context.is_offline_mode():
    context.configure(url="postgresql://", literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        context.run_migrations()
else:
    with attributes["engine"].connect() as conn:
        context.configure(
            connection=conn, target_metadata=attributes.get("metadata"), **attributes.get("options", {})
        )
        with context.begin_transaction():
            context.run_migrations()
"""

REVISION = """
from sqlane_sa import migrations

revision, down_revision = {revision!r}, {down_revision!r}


def upgrade():
    {upgrade}


def downgrade():
    {downgrade}
"""


@pytest.fixture
def new_database(server: Any, admin: sa.Engine) -> Iterator[Callable[[], str]]:
    """Make an empty database; returns its URL."""
    with ExitStack() as databases:
        yield lambda: str(server.url(databases.enter_context(database(admin, "template0")), tcp=True))


@pytest.fixture
def empty_url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
def empty(empty_url: str) -> Iterator[sa.Engine]:
    """An engine on an empty database."""
    engine = sa.create_engine(empty_url, poolclass=sa.NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def new_role(empty: sa.Engine) -> Iterator[Callable[[], str]]:
    """Make a role with no rights but to log in; returns its name; its password is "sqlane"."""
    names: list[str] = []

    def make() -> str:
        names.append(f"role_{uuid4().hex}")
        with empty.begin() as conn:
            conn.exec_driver_sql(f"CREATE ROLE {names[-1]} LOGIN PASSWORD 'sqlane'")
        return names[-1]

    yield make
    with empty.begin() as conn:
        for name in names:
            conn.exec_driver_sql(f"DROP OWNED BY {name} CASCADE")
            conn.exec_driver_sql(f"DROP ROLE {name}")


@pytest.fixture
def second_revision() -> str:
    """The source of a made-up revision that follows the newest packaged one."""
    return SECOND_REVISION


@pytest.fixture
def two_revisions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The package as it will be with one more revision."""
    alembic = tmp_path / "two_revisions"
    shutil.copytree(chain.folder(), alembic, ignore=shutil.ignore_patterns("__pycache__"))
    (alembic / "versions" / "sqlane_0002.py").write_text(SECOND_REVISION)
    monkeypatch.setattr(chain, "folder", lambda: alembic)
    monkeypatch.setattr(readiness, "REVISION", "sqlane_0002")
    chain.revisions.cache_clear()
    yield
    chain.revisions.cache_clear()


class Application:
    """An application with an Alembic environment of its own."""

    def __init__(self, folder: Path, engine: sa.Engine) -> None:
        self.folder = folder
        self.output = StringIO()
        self.config = Config(output_buffer=self.output)
        self.config.set_main_option("script_location", str(folder))
        self.config.attributes["engine"] = engine
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(ENVIRONMENT)

    def revision(
        self, revision: str, down_revision: str | None = None, upgrade: str = "pass", downgrade: str = "pass"
    ) -> None:
        source = REVISION.format(revision=revision, down_revision=down_revision, upgrade=upgrade, downgrade=downgrade)
        (self.folder / "versions" / f"{revision}.py").write_text(source)

    def has_branch(self) -> None:
        """The package's folder as one more version location."""
        folders = os.pathsep.join([f"{self.folder}/versions", f"{chain.folder()}/versions"])
        # The second name is that of Alembic before 1.16.
        for name in ("path_separator", "version_path_separator"):
            self.config.set_main_option(name, "os")
        self.config.set_main_option("version_locations", folders)

    def upgrade(self, revision: str = "head", *, sql: bool = False) -> None:
        command.upgrade(self.config, revision, sql=sql)

    def downgrade(self, revision: str = "base", *, sql: bool = False) -> None:
        command.downgrade(self.config, revision, sql=sql)


@pytest.fixture
def application(tmp_path: Path, empty: sa.Engine) -> Application:
    return Application(tmp_path / "application", empty)


CATALOGUE = """
SELECT c.relname, 'column', a.attname, concat_ws(' | ', a.attnum, format_type(a.atttypid, a.atttypmod), l.collname,
       a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
FROM tables AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
UNION ALL
SELECT c.relname, 'constraint', n.conname, pg_get_constraintdef(n.oid)
FROM tables AS c JOIN pg_constraint AS n ON n.conrelid = c.oid
UNION ALL
SELECT c.relname, 'index', i.relname, pg_get_indexdef(i.oid)
FROM tables AS c JOIN pg_index AS x ON x.indrelid = c.oid JOIN pg_class AS i ON i.oid = x.indexrelid
UNION ALL
SELECT c.relname, 'storage', o.option_name, o.option_value
FROM tables AS c CROSS JOIN LATERAL pg_options_to_table(c.reloptions) AS o
UNION ALL
SELECT c.relname, 'table', c.relkind::text, NULL FROM tables AS c
"""

Snapshot = set[tuple[str, str, str, str | None]]


@pytest.fixture
def snapshot() -> Callable[[sa.Engine], Snapshot]:
    """What the catalogue says about all tables of the database: (table, kind, name, definition)."""

    def take(engine: sa.Engine) -> Snapshot:
        tables = """
            WITH tables AS (
                SELECT c.* FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
                WHERE s.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
                      AND c.relkind NOT IN ('i', 't'))
        """
        with engine.connect() as conn:
            return {(row[0], row[1], row[2], row[3]) for row in conn.exec_driver_sql(tables + CATALOGUE)}

    return take
