"""upgrade() and downgrade() in an application's own Alembic chain, and the packaged versions folder beside its own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic import command

from sqlane_sa import migrations
from sqlane_sa.queue import Queue
from sqlane_sa.values.errors import AutocommitError, DefinitionError, HandleError, SchemaError, SqlaneError

if TYPE_CHECKING:
    from conftest import Application

HEAD = migrations.head()
ODD_PREFIX, ODD_SCHEMA = 'x"y %s :p 🚂', 'S "q" %s'
Take = Callable[[sa.Engine], set[tuple[str, str, str, str | None]]]


def queue_only(found: set[tuple[str, str, str, str | None]]) -> set[tuple[str, str, str, str | None]]:
    return {row for row in found if row[0] != "alembic_version"}


def test_a_revision_of_the_application(
    empty: sa.Engine, application: "Application", new_database: Callable[[], str], snapshot: Take
) -> None:
    application.revision("a1", None, "migrations.upgrade('0001')", "migrations.downgrade()")
    application.revision("a2", "a1")
    other = sa.create_engine(new_database(), poolclass=sa.NullPool)
    migrations.apply(other, Queue())
    for _ in range(3):
        application.upgrade()
        migrations.check(empty, Queue())
        assert migrations.apply(empty, Queue()) == []
        assert queue_only(snapshot(empty)) == snapshot(other)
        application.downgrade()
        assert queue_only(snapshot(empty)) == set()


def test_odd_names(empty: sa.Engine, application: "Application", snapshot: Take) -> None:
    place = f"prefix={ODD_PREFIX!r}, schema={ODD_SCHEMA!r}"
    application.revision("a1", None, f"migrations.upgrade({HEAD!r}, {place})", f"migrations.downgrade({place})")
    with empty.begin() as conn:
        conn.execute(sa.schema.CreateSchema(ODD_SCHEMA))
    application.upgrade()
    migrations.check(empty, Queue(ODD_PREFIX, ODD_SCHEMA))
    application.downgrade()
    assert queue_only(snapshot(empty)) == set()


def test_the_applications_naming_convention_changes_no_name(
    empty: sa.Engine, application: "Application", snapshot: Take
) -> None:
    migrations.apply(empty, Queue("abcde_"))
    expected = {str(row).replace("abcde_", "sqlane_") for row in snapshot(empty)}
    migrations.revert(empty, Queue("abcde_"))
    convention = {
        "ix": "ix_%(column_0_label)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
    application.config.attributes["metadata"] = sa.MetaData(naming_convention=convention)
    application.revision("a1", None, "migrations.upgrade('0001')")
    application.upgrade()
    assert {str(row) for row in queue_only(snapshot(empty))} == expected


def test_offline_scripts_do_the_same(
    empty: sa.Engine, application: "Application", new_database: Callable[[], str], snapshot: Take
) -> None:
    place = f"prefix={ODD_PREFIX!r}, schema={ODD_SCHEMA!r}"
    application.revision("a1", None, f"migrations.upgrade('0001', {place})", f"migrations.downgrade({place})")
    other = sa.create_engine(new_database(), poolclass=sa.NullPool)
    migrations.apply(other, Queue(ODD_PREFIX, ODD_SCHEMA))
    with empty.begin() as conn:
        conn.execute(sa.schema.CreateSchema(ODD_SCHEMA))

    def run_script() -> None:
        script = application.output.getvalue()
        application.output.seek(0)
        application.output.truncate()
        with empty.connect().execution_options(isolation_level="AUTOCOMMIT", no_parameters=True) as conn:
            conn.exec_driver_sql(script)

    application.upgrade(sql=True)
    run_script()
    migrations.check(empty, Queue(ODD_PREFIX, ODD_SCHEMA))
    assert queue_only(snapshot(empty)) == snapshot(other)
    application.downgrade("a1:base", sql=True)
    run_script()
    assert queue_only(snapshot(empty)) == set()


@pytest.mark.usefixtures("two_revisions")
def test_a_later_revision_of_the_package(empty: sa.Engine, application: "Application") -> None:
    application.revision("a1", None, "migrations.upgrade('0001')", "migrations.downgrade()")
    application.revision("a2", "a1", "migrations.upgrade('0002', '0001')", "migrations.downgrade('0001', '0002')")
    application.upgrade("a1")
    assert migrations.current(empty, Queue()) == "sqlane_0001"
    # The package is at 0002 already, the database is not: downgrade() starts from what the database has.
    application.downgrade()
    assert migrations.current(empty, Queue()) is None
    application.upgrade()
    migrations.check(empty, Queue())
    application.downgrade("a1")
    assert migrations.current(empty, Queue()) == "sqlane_0001"
    application.downgrade()
    assert migrations.current(empty, Queue()) is None


@pytest.mark.usefixtures("two_revisions")
def test_none_is_the_newest_of_the_package(empty: sa.Engine, application: "Application") -> None:
    application.revision("a1", None, "migrations.upgrade(None)", "migrations.downgrade(from_=migrations.head())")
    application.upgrade()
    migrations.check(empty, Queue())
    application.downgrade()
    assert migrations.current(empty, Queue()) is None


def test_tables_that_were_migrated_another_way(empty: sa.Engine, application: "Application") -> None:
    application.revision("a1", None, "migrations.upgrade('0001')", "migrations.downgrade()")
    migrations.apply(empty, Queue())
    with pytest.raises(SchemaError) as caught:
        application.upgrade()
    assert str(caught.value) == (
        f"the tables 'sqlane_*' are at revision {HEAD}, and migrations.upgrade() was to start from base; when they "
        "were migrated another way, mark the Alembic revision that has this call and nothing else as done (`alembic "
        "stamp` with its id: head would skip what comes after it), or else give the from_ that the database has"
    )
    assert (caught.value.current, caught.value.head) == (HEAD, HEAD)
    command.stamp(application.config, "a1")
    application.upgrade()
    application.downgrade()
    assert migrations.current(empty, Queue()) is None
    application.upgrade()
    migrations.revert(empty, Queue())
    with pytest.raises(SchemaError, match="are at revision base"):
        application.downgrade()


@pytest.mark.usefixtures("two_revisions")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("migrations.upgrade('0009')", "'0009' is not known; this version of sqlane_sa has sqlane_0001, sqlane_0002"),
        ("migrations.upgrade('0001', 'no')", "'no' is not known"),
        ("migrations.upgrade('0001', from_='0002')", "goes the wrong way"),
        ("migrations.downgrade('0002', '0001')", "goes the wrong way"),
        ("migrations.upgrade('0001', prefix='x' * 60)", "prefix"),
    ],
)
def test_calls_that_cannot_be_meant(application: "Application", call: str, message: str) -> None:
    application.revision("a1", None, call)
    with pytest.raises(DefinitionError, match=message):
        application.upgrade()


@pytest.mark.parametrize(("function", "directly"), [("upgrade", "apply"), ("downgrade", "revert")])
def test_a_call_outside_a_revision_names_the_right_one(
    application: "Application", function: str, directly: str
) -> None:
    """Also when revisions have run in this process before, and failed."""

    def call() -> None:
        with pytest.raises(SqlaneError) as caught:
            getattr(migrations, function)("0001", "0001")
        assert str(caught.value) == (
            f"migrations.{function}() works only in a revision that Alembic runs; call it in the {function}() of one, "
            f"or use migrations.{directly}(engine, queue)"
        )

    call()
    application.revision("a1")
    application.revision("a2", "a1", "1 / 0")
    application.upgrade("a1")
    call()
    with pytest.raises(ZeroDivisionError):
        application.upgrade()
    call()


def test_other_databases_are_refused(application: "Application") -> None:
    application.revision("a1", None, "migrations.upgrade('0001')")
    application.config.attributes["engine"] = sa.create_engine("sqlite://")
    with pytest.raises(HandleError, match=r"^migrations\.upgrade\(\) needs PostgreSQL, and this is sqlite"):
        application.upgrade()


def test_autocommit_is_refused(empty: sa.Engine, application: "Application") -> None:
    application.revision("a1", None, "migrations.upgrade('0001')")
    application.config.attributes["engine"] = empty.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(AutocommitError, match=r"^migrations\.upgrade\(\) needs a transaction"):
        application.upgrade()


def test_a_schema_translate_map_moves_nothing(empty: sa.Engine, application: "Application") -> None:
    application.revision("a1", None, "migrations.upgrade('0001')", "migrations.downgrade()")
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA elsewhere")
    translated = empty.execution_options(schema_translate_map={None: "elsewhere"})
    application.config.attributes["engine"] = translated
    application.upgrade()
    migrations.check(empty, Queue())
    assert "sqlane_jobs" in sa.inspect(empty).get_table_names()


@pytest.mark.parametrize(
    ("queue", "options", "attributes"),
    [
        (Queue(), {}, {}),
        (Queue("my_", "mine"), {"sqlane_prefix": "my_", "sqlane_schema": "mine"}, {}),
        (Queue("my_", "mine"), {}, {"sqlane_target": Queue("my_", "mine")}),
        (Queue("my_"), {"sqlane_prefix": "no_"}, {"sqlane_target": migrations.Target("my_")}),
    ],
)
def test_the_versions_folder_as_a_branch(
    empty: sa.Engine,
    application: "Application",
    snapshot: Take,
    queue: Queue,
    options: dict[str, str],
    attributes: dict[str, Any],
) -> None:
    application.revision("a1", None)
    application.has_branch()
    for name, value in options.items():
        application.config.set_main_option(name, value)
    application.config.attributes.update(attributes)
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA mine")
    application.upgrade("heads")
    migrations.check(empty, queue)
    assert queue.tables.jobs.name in sa.inspect(empty).get_table_names(schema=queue.tables.schema)
    application.downgrade("sqlane@base")
    assert queue_only(snapshot(empty)) == set()


def test_an_application_that_applies_while_its_own_revision_runs(empty: sa.Engine, application: "Application") -> None:
    """The operations of the revision that runs are still there afterwards."""
    application.revision(
        "a1",
        None,
        "from alembic import op; from sqlane_sa.queue import Queue; migrations.apply(op.get_bind(), Queue('my_')); "
        "op.execute('CREATE TABLE own ()')",
    )
    application.upgrade()
    assert {"own", "my_jobs"} <= set(sa.inspect(empty).get_table_names())
