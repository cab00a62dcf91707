"""current() and check(): what they say, and what they refuse."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa import migrations
from sqlane_sa.queue import Queue
from sqlane_sa.schema import REVISION
from sqlane_sa.values.errors import DefinitionError, HandleError, SchemaAheadError, SchemaBehindError

HEAD = migrations.head()


def test_the_head() -> None:
    assert migrations.head() == "sqlane_0001"


def test_the_revision_that_a_worker_looks_for_without_alembic() -> None:
    assert migrations.head() == REVISION


def test_missing_tables(empty: sa.Engine) -> None:
    with pytest.raises(SchemaBehindError) as caught:
        migrations.check(empty, Queue("my_", "mine"))
    url = empty.url
    assert str(caught.value) == (
        f"the tables 'my_*' in schema 'mine' are not in the database '{url.database}' on {url.host}:{url.port}, "
        f"and this version of sqlane_sa needs {HEAD}; "
        "run `alembic upgrade head` if an Alembic chain of yours has them (with a revision that calls "
        "migrations.upgrade(to='0001', prefix='my_', schema='mine')), or else run "
        "`sqlane migrate --prefix my_ --schema mine`"
    )
    assert (caught.value.current, caught.value.head) == (None, HEAD)


@pytest.mark.usefixtures("two_revisions")
def test_tables_that_are_behind(empty: sa.Engine) -> None:
    migrations.apply(empty, Queue(), "0001")
    with pytest.raises(SchemaBehindError) as caught:
        migrations.check(empty, Queue())
    assert str(caught.value) == (
        "the tables 'sqlane_*' are at revision sqlane_0001, and this version of sqlane_sa needs sqlane_0002; "
        "run `alembic upgrade head` if an Alembic chain of yours has them (with a revision that calls "
        "migrations.upgrade(to='0002', from_='0001')), or else run `sqlane migrate`"
    )
    assert (caught.value.current, caught.value.head) == ("sqlane_0001", "sqlane_0002")


def test_tables_that_are_ahead(empty: sa.Engine) -> None:
    migrations.apply(empty, Queue())
    with empty.begin() as conn:
        conn.exec_driver_sql("UPDATE sqlane_version SET version_num = 'sqlane_9999'")
    assert migrations.current(empty, Queue()) == "sqlane_9999"
    with pytest.raises(SchemaAheadError) as caught:
        migrations.check(empty, Queue())
    assert str(caught.value) == (
        f"the database is at revision sqlane_9999, and this version of sqlane_sa knows none after {HEAD}; "
        "install the version that migrated it, or a later one"
    )


def test_a_role_with_nothing_but_select(empty: sa.Engine, new_role: Callable[[], str]) -> None:
    role = new_role()
    theirs = sa.create_engine(empty.url.set(username=role, password="sqlane"), poolclass=sa.NullPool)
    queue = Queue(schema="mine")
    assert migrations.current(theirs, queue) is None
    migrations.apply(empty, queue)
    with empty.begin() as conn:
        conn.exec_driver_sql(f"GRANT USAGE ON SCHEMA mine TO {role}")
        conn.exec_driver_sql(f"GRANT SELECT ON mine.sqlane_version TO {role}")
    assert migrations.current(theirs, queue) == HEAD
    migrations.check(theirs, queue)


def test_no_transaction_stays_open(empty_url: str) -> None:
    engine = sa.create_engine(empty_url)
    migrations.apply(engine, Queue())
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%%'"
    with engine.connect() as conn:
        migrations.check(engine, Queue())
        assert conn.exec_driver_sql(idle).scalar() == 0
        conn.rollback()
        migrations.check(conn, Queue())
        assert not conn.in_transaction()
        with conn.begin():
            migrations.check(conn, Queue())
            assert conn.in_transaction()
    engine.dispose()


@pytest.mark.parametrize("function", [migrations.apply, migrations.revert, migrations.current, migrations.check])
def test_what_is_no_engine_or_connection_is_refused(empty: sa.Engine, function: Callable[..., Any]) -> None:
    asynchronous = create_async_engine(empty.url.set(drivername="postgresql+asyncpg"))
    run_sync = rf"async with engine\.begin\(\) as conn: await conn\.run_sync\(migrations\.{function.__name__}, queue\)"
    for bind, form in (
        (empty.url.render_as_string(), r"got str; pass sqlalchemy\.create_engine\(url\)"),
        (empty.url, r"got URL; pass sqlalchemy\.create_engine"),
        (None, r"got NoneType; pass sqlalchemy\.create_engine"),
        (Session(empty), r"got Session; pass session\.connection\(\)"),
        (asynchronous, "got AsyncEngine; use `" + run_sync),
        (asynchronous.connect(), "got AsyncConnection; use `" + run_sync),
        (asynchronous.sync_engine, "got the Engine of an async engine.*" + run_sync),
        (sa.create_engine("sqlite://"), "needs PostgreSQL, and this is sqlite"),
    ):
        with pytest.raises(HandleError, match=rf"^migrations\.{function.__name__}\(\) .*" + form):
            function(bind, Queue())


def test_what_is_no_queue_is_refused(empty: sa.Engine) -> None:
    with pytest.raises(HandleError, match="a Queue is needed here, and got str"):
        migrations.apply(empty, "sqlane_")


@pytest.mark.parametrize("revision", ["0009", "sqlane_9", "heads", "+1", "", None, 1])
def test_unknown_revisions_are_refused_with_the_known(empty: sa.Engine, revision: Any) -> None:
    for step in (migrations.apply, migrations.revert):
        with pytest.raises(DefinitionError, match=rf"not known; this version of sqlane_sa has {HEAD}") as caught:
            step(empty, Queue(), revision)
        assert (caught.value.option, caught.value.value) == ("revision", revision)


def test_importing_the_package_does_not_import_alembic() -> None:
    source = "import sqlane_sa, sqlane_sa.queue, sys; sys.exit('alembic' in sys.modules)"
    subprocess.run([sys.executable, "-c", source], check=True)


def test_the_folder_of_an_installed_package(tmp_path: Path) -> None:
    """As a wheel lays it out, in a folder where Alembic itself might be: beside is not enough."""
    source = "from sqlane_sa import migrations; print(migrations.folder(), migrations.head())"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True)

    package = tmp_path / "sqlane_sa"
    repository = Path(migrations.__file__).parents[2]
    subprocess.run(["cp", "-r", repository / "sqlane_sa", package], check=True)
    (tmp_path / "alembic" / "versions").mkdir(parents=True)
    assert "SqlaneError: the packaged revisions are missing, looked for in " in run().stderr
    subprocess.run(["cp", "-r", migrations.folder(), package / "alembic"], check=True)
    assert run().stdout == f"{package / 'alembic'} {HEAD}\n"
