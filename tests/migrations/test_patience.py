"""An upgrade beside transactions that use the tables: it waits a little, gives up whole, and is nobody's deadlock."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic import command

from sqlane_sa import Queue, migrations
from sqlane_sa.values.errors import SchemaBusyError
from tests.migrations import usage
from tests.support import wait_until

if TYPE_CHECKING:
    from conftest import Application

pytestmark = pytest.mark.usefixtures("two_revisions")

SECOND = ("migrations.upgrade('0002', '0001')", "migrations.downgrade('0001', '0002')")


@pytest.fixture
def queue(empty: sa.Engine) -> Queue:
    """At the first revision; the second changes sleepers and jobs."""
    queue = Queue()
    migrations.apply(empty, queue, "0001")
    return queue


@pytest.fixture
def patient(empty_url: str) -> sa.Engine:
    """With a lock_timeout of its own."""
    return sa.create_engine(empty_url, connect_args={"options": "-c lock_timeout=60s"}, poolclass=sa.NullPool)


def by_apply(application: "Application") -> None:
    migrations.apply(application.config.attributes["engine"], Queue())


def by_call(application: "Application") -> None:
    application.revision("u1")
    application.revision("u2", "u1", *SECOND)
    application.upgrade()


def by_branch(application: "Application") -> None:
    application.has_branch()
    application.revision("u1")
    application.config.attributes["sqlane_target"] = Queue()
    command.stamp(application.config, "sqlane_0001")
    application.upgrade("heads")


@pytest.mark.parametrize("upgrade", [by_apply, by_call, by_branch])
def test_a_long_transaction_makes_it_give_up(
    empty: sa.Engine, application: "Application", queue: Queue, upgrade: Callable[["Application"], None]
) -> None:
    """Whatever it used last; the enqueue that waits behind the upgrade goes on then."""
    with empty.connect() as conn:
        usage.insert(conn, queue)
        with pytest.raises(SchemaBusyError) as caught:
            upgrade(application)
        assert str(caught.value) == (
            "the tables 'sqlane_*' stay at revision sqlane_0001: another transaction uses one of them, and waiting for "
            "it would hold up every enqueue; try again, or first end the transactions that pg_stat_activity shows as "
            "long open"
        )
        assert (caught.value.current, caught.value.head) == ("sqlane_0001", "sqlane_0002")
        conn.commit()
    assert migrations.current(empty, queue) == "sqlane_0001"
    assert migrations.apply(empty, queue) == ["sqlane_0002"]


@pytest.mark.parametrize("used", ["sleepers", "jobs"])
def test_it_waits_for_one_table_while_it_holds_none(
    empty: sa.Engine, patient: sa.Engine, queue: Queue, used: str
) -> None:
    """A transaction that has used the one, then uses the other: with both locked in turn, this is a deadlock."""
    [other] = {"sleepers", "jobs"} - {used}
    with ThreadPoolExecutor(1) as pool, empty.connect() as conn:
        conn.exec_driver_sql("SET LOCAL lock_timeout = '20s'")
        conn.exec_driver_sql(f"SELECT FROM sqlane_{used}")
        upgrade = pool.submit(migrations.apply, patient, queue)
        wait_until(lambda: waits_for(empty) == {f"sqlane_{used}"})
        conn.exec_driver_sql(f"SELECT FROM sqlane_{other}")
        conn.commit()
        assert upgrade.result(timeout=60) == ["sqlane_0002"]


def waits_for(engine: sa.Engine) -> set[str]:
    """The tables that somebody waits for who holds no table of the queue but its version table exclusively."""
    statement = """
        SELECT w.relation::regclass::text FROM pg_locks AS w WHERE NOT w.granted AND NOT EXISTS (
            SELECT FROM pg_locks AS h WHERE h.pid = w.pid AND h.granted AND h.mode = 'AccessExclusiveLock'
                AND h.locktype = 'relation')"""
    with engine.connect() as conn:
        return set(conn.exec_driver_sql(statement).scalars())


def test_enqueues_go_on_while_it_waits_again_and_again(empty: sa.Engine, queue: Queue) -> None:
    """Two threads enqueue, in transactions of more than one statement, until the upgrade has come and gone."""
    over = threading.Event()

    def produce() -> int:
        count = 0
        mine = Queue()
        while not over.is_set():
            with empty.begin() as conn:
                usage.fall_asleep(conn, mine)
                usage.insert(conn, mine)
                usage.look(conn, mine)
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        producers = [pool.submit(produce) for _ in range(2)]
        try:
            for _ in range(3):
                until_it_works(migrations.apply, empty, queue)
                until_it_works(migrations.revert, empty, queue, "0001")
        finally:
            over.set()
        assert all(producer.result() for producer in producers)


def until_it_works(step: Callable[..., list[str]], *arguments: Any) -> None:
    while True:
        try:
            assert step(*arguments) == ["sqlane_0002"]
        except SchemaBusyError:
            continue
        return


def test_the_timeout_is_as_before_afterwards(empty: sa.Engine, patient: sa.Engine, queue: Queue) -> None:
    for engine, timeout in ((empty, "0"), (patient, "1min")):
        with engine.begin() as conn:
            migrations.apply(conn, queue)
            assert conn.exec_driver_sql("SHOW lock_timeout").scalar() == timeout
            migrations.revert(conn, queue, "0001")
            assert conn.exec_driver_sql("SHOW lock_timeout").scalar() == timeout


def test_a_script_locks_all_tables_at_once(queue: Queue) -> None:
    script = migrations.sql(queue, "0001")
    assert script.index("SET LOCAL lock_timeout = '1500ms'") < script.index(
        "LOCK TABLE sqlane_jobs, sqlane_sleepers IN"
    )
    assert script.index("LOCK TABLE") < script.index("ALTER TABLE")
