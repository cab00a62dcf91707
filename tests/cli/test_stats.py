"""`sqlane stats`: what a person reads, and what a program does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.cli.ages import age
from sqlane_sa.values.ids import new_id
from tests.cli.conftest import Sqlane

EMPTY = "the queue is empty: nothing waits, runs or has failed\n"


def add_job(conn: sa.Connection, queue: Queue, name: str, changes: str = "") -> None:
    """A pending job that was due three hours and five minutes ago; `changes` as of an UPDATE."""
    id_ = new_id()
    conn.execute(sa.insert(queue.tables.jobs).values(id=id_, job_name=name))
    table = conn.dialect.identifier_preparer.format_table(queue.tables.jobs)
    set_ = changes or "run_at = now() - interval '3 h 5 min 20 s'"
    conn.execute(sa.text(f"UPDATE {table} SET {set_} WHERE id = :id"), {"id": id_})


RUNNING = "status = 'running', lock_token = id, locked_by = 'me', locked_until = now() + interval '1 min'"
STUCK = RUNNING + ", timed_out_at = now()"
FAILED = "status = 'failed', finished_at = now()"


@pytest.fixture
def jobs(engine: sa.Engine) -> None:
    """Jobs in every state; the queue of the command knows none of their names."""
    queue = Queue()
    with engine.begin() as conn:
        later = datetime.now(UTC) + timedelta(days=1)
        many = [{"id": new_id(), "job_name": "mail.send", "run_at": later} for _ in range(1200)]
        conn.execute(sa.insert(queue.tables.jobs), many)
        add_job(conn, queue, "mail.send")
        add_job(conn, queue, "mail.send", RUNNING)
        add_job(conn, queue, "mail.send", STUCK)
        add_job(conn, queue, "odd\n[bold] \x1b[31mname", FAILED)
        add_job(conn, queue, "done", "status = 'completed', finished_at = now()")


@pytest.mark.usefixtures("jobs")
def test_each_state_has_its_column(sqlane: Sqlane, database_url: str) -> None:
    answer = sqlane("stats", "--url", database_url)
    assert (answer.code, answer.err) == (0, "")
    heading, mail, odd = answer.out.splitlines()
    assert heading.split() == ["name", "pending", "due", "running", "stuck", "failed", "oldest", "due"]
    assert mail.split() == ["mail.send", "1,201", "1", "2", "1", "0", "3", "h", "5", "min"]
    # What a terminal would obey is escaped, and a line stays a line.
    assert odd.startswith(r"odd\n[bold] \x1b[31mname")
    assert odd.split()[-5:] == ["0", "0", "0", "0", "1"]
    assert len({heading.index("pending") + len("pending"), mail.index("1,201") + len("1,201")}) == 1


@pytest.mark.usefixtures("jobs")
def test_json(within: Sqlane, database_url: str) -> None:
    mail, odd = json.loads(within("stats", "--json", "--url", database_url).out)
    assert mail.pop("oldest_due_ms") >= 3 * 3600_000
    assert mail == {"name": "mail.send", "pending": 1201, "due": 1, "running": 2, "stuck": 1, "failed": 0}
    assert (odd["name"], odd["failed"], odd["oldest_due_ms"]) == ("odd\n[bold] \x1b[31mname", 1, None)


def test_empty(within: Sqlane, database_url: str) -> None:
    assert within("stats", "--url", database_url) == (0, EMPTY, "")
    assert within("stats", "--json", SQLANE_DATABASE_URL=database_url) == (0, "[]\n", "")


def test_prefix_and_schema(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    other = Queue("other_", "Another Schema")
    migrations.apply(engine, other)
    with engine.begin() as conn:
        add_job(conn, other, "theirs")
    place = ("--prefix", "other_", "--schema", "Another Schema")
    assert "theirs" in within("stats", "--url", database_url, *place).out
    assert within("stats", "--url", database_url) == (0, EMPTY, "")


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (185_000, "3 min 5 s"),
        (3_600_000, "1 h"),
        (3_605_000, "1 h"),
        (187_200_000, "2 d 4 h"),
        (86_400_000 * 1000, "1000 d"),
    ],
)
def test_an_age_has_two_units_at_most(ms: int, shown: str) -> None:
    assert age(ms) == shown
