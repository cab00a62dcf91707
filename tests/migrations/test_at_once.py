"""Many that migrate at once: one does the work, and the others wait and find nothing to do."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from sqlane_sa import migrations
from sqlane_sa.queue import Queue
from tests.support import wait_for_lock_wait

HEAD = migrations.head()

PROCESS = """
import sys
import sqlalchemy as sa
from sqlane_sa import migrations
from sqlane_sa.schema import Tables

url, level, schema = sys.argv[1:]
engine = sa.create_engine(url, isolation_level=level)
engine.connect().close()
print("ready", flush=True)
sys.stdin.readline()
print(migrations.apply(engine, Tables(schema=schema)), migrations.current(engine, Tables(schema=schema)))
"""


@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_six_processes_at_once(empty_url: str, level: str) -> None:
    arguments = [sys.executable, "-c", PROCESS, empty_url, level, "New schema"]
    processes = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = sorted(process.communicate(timeout=60)[0].strip() for process in processes)
    assert [process.returncode for process in processes] == [0] * 6
    assert answers == [f"['{HEAD}'] {HEAD}"] + [f"[] {HEAD}"] * 5


def test_many_threads_that_apply_and_revert(empty: sa.Engine) -> None:
    queues = [Queue(schema="new"), Queue("other_", schema="new")]

    def work(number: int) -> None:
        for turn in range(8):
            step = migrations.apply if (number + turn) % 2 else migrations.revert
            step(empty, queues[number % 2 if turn < 4 else turn % 2])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    for queue in queues:
        migrations.apply(empty, queue)
        migrations.check(empty, queue)
        migrations.revert(empty, queue)
    assert sa.inspect(empty).get_table_names(schema="new") == []


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("migrated", [True, False])
def test_the_second_waits_for_the_first(empty: sa.Engine, commits: bool, migrated: bool) -> None:
    """`migrated`: the first reverts and the second does too; else both apply."""
    queue, step = Queue(), migrations.apply
    if migrated:
        migrations.apply(empty, queue)
        step = migrations.revert
    with ThreadPoolExecutor(1) as pool, empty.connect() as conn:
        assert step(conn, queue) == [HEAD]
        second = pool.submit(step, empty, queue)
        wait_for_lock_wait(empty)
        conn.commit() if commits else conn.rollback()
        assert second.result(timeout=60) == ([] if commits else [HEAD])


@pytest.mark.usefixtures("two_revisions")
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_waits_for_the_first_when_the_tables_exist(empty: sa.Engine, commits: bool) -> None:
    """It waits for the version table's lock, before it touches any other table."""
    queue = Queue()
    migrations.apply(empty, queue, "0001")
    with ThreadPoolExecutor(1) as pool, empty.connect() as conn:
        migrations.apply(conn, queue)
        second = pool.submit(migrations.apply, empty, queue)
        [pid] = wait_for_lock_wait(empty)
        waits_for = "SELECT mode FROM pg_locks WHERE NOT granted AND pid = %s AND relation = 'sqlane_version'::regclass"
        assert conn.exec_driver_sql(waits_for, (pid,)).scalars().all() == ["ShareRowExclusiveLock"]
        conn.commit() if commits else conn.rollback()
        assert second.result(timeout=60) == ([] if commits else ["sqlane_0002"])


def test_an_apply_that_waited_for_a_revert_migrates_again(empty: sa.Engine) -> None:
    queue = Queue()
    migrations.apply(empty, queue)
    with ThreadPoolExecutor(1) as pool, empty.connect() as conn:
        migrations.revert(conn, queue)
        second = pool.submit(migrations.apply, empty, queue)
        wait_for_lock_wait(empty)
        conn.commit()
        second.result(timeout=60)
    migrations.check(empty, queue)
