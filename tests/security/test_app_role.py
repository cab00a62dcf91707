"""docs/security.md: what the role that may only insert can do to the jobs of others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.testing import drain

ROLES = Path(__file__).parents[2].joinpath("docs", "roles.md").read_text()
RIGHTS = re.findall(r"\n## app\n.*?```sql\n(.*?)```", ROLES, re.S)
BY_SQL = """
INSERT INTO sqlane_jobs (id, job_name, priority, run_at, max_attempts, max_stalls, mutex_keys)
VALUES ('odd', 'of nobody', 0, statement_timestamp() - interval '1 day', 1, 0, '{k}');
INSERT INTO sqlane_waits (mutex_key, run_at, job_id)
VALUES ('k', date_trunc('milliseconds', statement_timestamp() - interval '1 day'), 'odd')"""
RUNNING = """
INSERT INTO sqlane_jobs (id, job_name, status, priority, run_at, max_attempts, max_stalls, mutex_keys, lock_token,
                         locked_by, locked_until)
VALUES ('odd', 'of nobody', 'running', 0, statement_timestamp(), 1, 0, '{k}', 't', 'w', 'infinity')"""
LONG_AGO = sa.text("SELECT statement_timestamp() - interval '1 day'")


def enqueued(conn: sa.Connection) -> None:
    theirs = Queue()
    theirs.define("of nobody")
    theirs.enqueue(conn, "of nobody", run_at=conn.scalar(LONG_AGO), mutex_keys=["k"])


def inserted(conn: sa.Connection) -> None:
    conn.exec_driver_sql(BY_SQL)


def as_app(conn: sa.Connection, do: Callable[[sa.Connection], None]) -> None:
    """As a role with the rights of the page; it goes with the transaction."""
    role = f"app_{uuid4().hex}"
    conn.exec_driver_sql(f"CREATE ROLE {role}")
    conn.exec_driver_sql(RIGHTS[0].replace("TO app;", f"TO {role};"))
    conn.exec_driver_sql(f"SET LOCAL ROLE {role}")
    do(conn)
    conn.exec_driver_sql("SET LOCAL ROLE NONE")


def started(conn: sa.Connection, queue: Queue) -> list[str]:
    done: list[str] = []
    queue.job("n")(done.append)
    queue.enqueue_many(conn, [queue.new("n", str(keys), mutex_keys=keys) for keys in (["k"], ["other"], [])])
    drain(conn, queue)
    return sorted(done)


@pytest.mark.parametrize("do", [enqueued, inserted])
def test_who_may_insert_can_block_the_line_of_a_key(
    conn: sa.Connection, queue: Queue, do: Callable[[sa.Connection], None]
) -> None:
    """And of that key alone, until what is at the head of its line is gone."""
    as_app(conn, do)
    assert started(conn, queue) == ["['other']", "[]"]
    conn.exec_driver_sql("DELETE FROM sqlane_jobs WHERE job_name = 'of nobody'")
    assert drain(conn, queue).completed == 1


def test_a_row_that_claims_to_run_holds_no_key(conn: sa.Connection, queue: Queue) -> None:
    """For that, it would have to write `mutexes`."""
    as_app(conn, lambda conn: conn.exec_driver_sql(RUNNING))
    assert started(conn, queue) == ["['k']", "['other']", "[]"]
    with pytest.raises(sa.exc.ProgrammingError, match="permission denied for table sqlane_mutexes"):
        as_app(conn, lambda conn: conn.exec_driver_sql("INSERT INTO sqlane_mutexes (mutex_key) VALUES ('k')"))
