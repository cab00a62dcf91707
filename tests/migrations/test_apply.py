"""apply() and revert() on everything that may be passed, by every kind of role."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine

from sqlane_sa import migrations
from sqlane_sa.queue import Queue
from sqlane_sa.schema import Tables
from sqlane_sa.values.errors import AutocommitError, SchemaAheadError
from tests.support import PARAMETER_LIKE, with_driver

HEAD = migrations.head()
ODD = Tables(f'x"y %s :p {PARAMETER_LIKE} 🚂', f'S "q" %s :p {PARAMETER_LIKE}')
# SQLAlchemy 2.0 takes "%(a)s" in a name for a bind, with drivers whose binds have no names.
ODD_FOR_ALL_DRIVERS = Tables('x"y %s :p 🚂', 'S "q" %s :p')
Take = Callable[[sa.Engine], set[tuple[str, str, str, str | None]]]


def tables_in(engine: sa.Engine, schema: str | None = None) -> set[str]:
    return set(sa.inspect(engine).get_table_names(schema=schema))


def test_the_revisions_that_ran_are_returned(empty: sa.Engine) -> None:
    queue = Queue()
    assert migrations.current(empty, queue) is None
    assert migrations.revert(empty, queue) == []
    assert migrations.apply(empty, queue) == [HEAD]
    assert migrations.apply(empty, queue) == []
    assert migrations.current(empty, queue) == HEAD
    assert migrations.revert(empty, queue) == [HEAD]
    assert tables_in(empty) == set()


def test_applying_nothing_writes_nothing(empty: sa.Engine) -> None:
    assert migrations.apply(empty, Queue(schema="mine"), "base") == []
    assert "mine" not in sa.inspect(empty).get_schema_names()


@pytest.mark.usefixtures("two_revisions")
def test_single_steps(empty: sa.Engine) -> None:
    queue = Queue(schema="mine")
    assert migrations.head() == "sqlane_0002"
    assert migrations.apply(empty, queue, "0001") == ["sqlane_0001"]
    assert migrations.current(empty, queue) == "sqlane_0001"
    assert migrations.apply(empty, queue) == ["sqlane_0002"]
    assert migrations.apply(empty, queue, "0001") == []
    assert migrations.revert(empty, queue, "sqlane_0001") == ["sqlane_0002"]
    assert migrations.revert(empty, queue, "head") == []
    assert migrations.apply(empty, queue, migrations.head()) == ["sqlane_0002"]
    assert migrations.revert(empty, queue) == ["sqlane_0002", "sqlane_0001"]


@pytest.mark.usefixtures("two_revisions")
def test_an_error_in_a_later_revision_undoes_the_earlier(empty: sa.Engine) -> None:
    migrations.apply(empty, Tables(), "0001")
    with empty.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE sqlane_sleepers ADD extra text")
        conn.exec_driver_sql("CREATE TABLE other_sleepers ()")
    with pytest.raises(ProgrammingError):
        migrations.apply(empty, Tables())
    assert migrations.current(empty, Tables()) == "sqlane_0001"
    with pytest.raises(ProgrammingError):
        migrations.apply(empty, Tables("other_"))
    assert tables_in(empty) & {"other_payloads", "other_version"} == set()


def test_a_connection_is_not_committed(empty: sa.Engine) -> None:
    queue = Queue()
    with empty.connect() as conn:
        migrations.apply(conn, queue)
        assert migrations.current(conn, queue) == HEAD
        conn.rollback()
        assert migrations.current(conn, queue) is None
        with conn.begin():
            with conn.begin_nested() as savepoint:
                migrations.apply(conn, queue)
                savepoint.rollback()
            assert migrations.current(conn, queue) is None
            migrations.apply(conn, queue)
        assert migrations.current(empty, queue) == HEAD
        migrations.revert(conn, queue)
        conn.rollback()
    assert migrations.current(empty, queue) == HEAD


def test_an_error_leaves_the_callers_transaction_usable(empty: sa.Engine) -> None:
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE sqlane_sleepers ()")
        with pytest.raises(ProgrammingError, match="already exists"):
            migrations.apply(conn, Queue())
        assert conn.exec_driver_sql("SELECT 1").scalar() == 1
    assert tables_in(empty) == {"sqlane_sleepers"}


def test_two_queues_do_not_know_each_other(empty: sa.Engine, snapshot: Take) -> None:
    one, two, three = Queue(), Queue("other_"), Queue(schema="other")
    migrations.apply(empty, one)
    alone = snapshot(empty)
    migrations.apply(empty, two)
    migrations.apply(empty, three)
    migrations.revert(empty, one)
    assert [migrations.current(empty, queue) for queue in (one, two, three)] == [None, HEAD, HEAD]
    migrations.apply(empty, one)
    migrations.revert(empty, two)
    migrations.revert(empty, three)
    assert snapshot(empty) == alone


def test_the_schema_is_made_when_missing_and_stays(empty: sa.Engine) -> None:
    queue = Queue(schema="Mine")
    migrations.apply(empty, queue)
    migrations.revert(empty, queue)
    assert "Mine" in sa.inspect(empty).get_schema_names()


def test_a_role_that_may_not_create_schemas_uses_one_that_exists(empty: sa.Engine, new_role: Callable[[], str]) -> None:
    role = new_role()
    with empty.begin() as conn:
        conn.exec_driver_sql("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        conn.exec_driver_sql(f"CREATE SCHEMA mine AUTHORIZATION {role}")
    theirs = sa.create_engine(empty.url.set(username=role, password="sqlane"), poolclass=sa.NullPool)
    assert migrations.apply(theirs, Queue(schema="mine")) == [HEAD]
    with pytest.raises(ProgrammingError, match="permission denied for database"):
        migrations.apply(theirs, Queue(schema="another"))
    assert migrations.revert(theirs, Queue(schema="mine")) == [HEAD]


def test_a_role_that_may_only_read_finds_nothing_to_do(empty: sa.Engine, new_role: Callable[[], str]) -> None:
    role = new_role()
    migrations.apply(empty, Tables())
    with empty.begin() as conn:
        conn.exec_driver_sql(f"GRANT SELECT ON sqlane_version TO {role}")
    theirs = sa.create_engine(empty.url.set(username=role, password="sqlane"), poolclass=sa.NullPool)
    assert migrations.apply(theirs, Tables()) == []
    migrations.check(theirs, Tables())


def test_an_empty_search_path(empty_url: str) -> None:
    engine = sa.create_engine(empty_url, connect_args={"options": "-c search_path="}, poolclass=sa.NullPool)
    migrations.apply(engine, ODD)
    migrations.check(engine, ODD)
    migrations.revert(engine, ODD)
    with pytest.raises(ProgrammingError, match="no schema has been selected"):
        migrations.apply(engine, Tables())


def test_a_schema_translate_map_moves_nothing(empty: sa.Engine) -> None:
    moving = {None: "elsewhere", "mine": "elsewhere"}
    translated = empty.execution_options(schema_translate_map=moving)
    for queue in (Queue(), Queue(schema="mine")):
        migrations.apply(translated, queue)
        migrations.check(empty, queue)
        migrations.check(translated, queue)
        with translated.begin() as conn:
            migrations.revert(conn, queue)
            migrations.apply(conn, queue)
            assert conn.get_execution_options()["schema_translate_map"] == moving
    assert "elsewhere" not in sa.inspect(empty).get_schema_names()
    assert "sqlane_jobs" in tables_in(empty) & tables_in(empty, "mine")


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE", "REPEATABLE READ"])
def test_an_engines_isolation_level_changes_nothing(empty_url: str, level: Any) -> None:
    engine = sa.create_engine(empty_url, isolation_level=level)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE sqlane_sleepers ()")
    with pytest.raises(ProgrammingError):
        migrations.apply(engine, Queue())
    assert tables_in(engine) == {"sqlane_sleepers"}
    with engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE sqlane_sleepers")
    assert migrations.apply(engine, Queue()) == [HEAD]
    with engine.connect() as conn:
        default = "READ COMMITTED" if level == "AUTOCOMMIT" else level
        assert conn.exec_driver_sql("SHOW transaction_isolation").scalar() == default.lower()
    engine.dispose()


def test_a_connection_in_autocommit_is_refused(empty: sa.Engine) -> None:
    with empty.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        with pytest.raises(AutocommitError, match=r"^migrations\.apply\(\) needs a transaction"):
            migrations.apply(conn, Queue())
        assert migrations.current(conn, Queue()) is None


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_every_driver(empty_url: str, driver: str) -> None:
    engine = sa.create_engine(with_driver(empty_url, driver), poolclass=sa.NullPool)
    assert migrations.apply(engine, ODD_FOR_ALL_DRIVERS) == [HEAD]
    migrations.check(engine, ODD_FOR_ALL_DRIVERS)
    with engine.begin() as conn:
        assert migrations.revert(conn, ODD_FOR_ALL_DRIVERS) == [HEAD]


def test_an_async_connection_through_run_sync(empty_url: str) -> None:
    async def main() -> None:
        engine = create_async_engine(with_driver(empty_url, "asyncpg"), poolclass=sa.NullPool)
        async with engine.begin() as conn:
            assert await conn.run_sync(migrations.apply, ODD_FOR_ALL_DRIVERS) == [HEAD]
            await conn.run_sync(migrations.check, ODD_FOR_ALL_DRIVERS)
        async with engine.begin() as conn:
            assert await conn.run_sync(migrations.revert, ODD_FOR_ALL_DRIVERS) == [HEAD]

    asyncio.run(main())


def test_tables_of_a_newer_version_are_left_alone(empty: sa.Engine) -> None:
    migrations.apply(empty, Tables())
    with empty.begin() as conn:
        conn.exec_driver_sql("UPDATE sqlane_version SET version_num = 'sqlane_9999'")
    for step in (migrations.apply, migrations.revert):
        with pytest.raises(SchemaAheadError) as caught:
            step(empty, Tables())
        assert (caught.value.current, caught.value.head) == ("sqlane_9999", HEAD)
