"""`sqlane stats`: what a person reads, and what a program does."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.cli.ages import age
from sqlane_sa.testing import drain
from sqlane_sa.values.ids import new_id
from tests.cli.conftest import Sqlane, problem

stats = importlib.import_module("sqlane_sa.cli.stats")
"""The package has the command by this name."""

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
    heading, done, mail, odd = answer.out.splitlines()
    assert heading.split() == ["name", "pending", "due", "running", "stuck", "failed", "completed", "oldest", "due"]
    assert done.split() == ["done", "0", "0", "0", "0", "0", "1"]
    assert mail.split() == ["mail.send", "1,201", "1", "2", "1", "0", "0", "3", "h", "5", "min"]
    # What a terminal would obey is escaped, and a line stays a line.
    assert odd.startswith(r"odd\n[bold] \x1b[31mname")
    assert odd.split()[-6:] == ["0", "0", "0", "0", "1", "0"]
    assert len({heading.index("pending") + len("pending"), mail.index("1,201") + len("1,201")}) == 1


@pytest.mark.usefixtures("jobs")
def test_json(within: Sqlane, database_url: str) -> None:
    done, mail, odd = json.loads(within("stats", "--json", "--url", database_url).out)
    assert (done["name"], done["failed"], done["completed"]) == ("done", 0, 1)
    assert mail.pop("completed") == 0
    assert mail.pop("oldest_due_ms") >= 3 * 3600_000
    assert mail == {"name": "mail.send", "pending": 1201, "due": 1, "running": 2, "stuck": 1, "failed": 0}
    assert (odd["name"], odd["failed"], odd["oldest_due_ms"]) == ("odd\n[bold] \x1b[31mname", 1, None)


@pytest.mark.usefixtures("jobs")
def test_a_large_table_is_read_when_asked(within: Sqlane, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it says how to ask."""
    monkeypatch.setattr(stats, "MAX_BYTES", 8192)
    answer = within("stats", "--url", database_url)
    assert answer.code == 0
    heading, *rows, note = answer.out.splitlines()
    assert "completed" not in heading
    assert not any(row.startswith("done") for row in rows)
    assert note == stats.NOT_COUNTED
    assert "done" in within("stats", "--all", "--url", database_url).out
    mail, odd = json.loads(within("stats", "--json", "--url", database_url).out)
    assert (mail["completed"], odd["completed"]) == (None, None)
    done, mail, _ = json.loads(within("stats", "--all", "--json", "--url", database_url).out)
    assert (done["completed"], mail["completed"]) == (1, 0)


def test_what_completes_leaves_a_trace(engine: sa.Engine, within: Sqlane, database_url: str) -> None:
    """What a new user looks at first."""
    queue = Queue()
    queue.job("hello")(lambda payload: None)
    with engine.begin() as conn:
        queue.enqueue(conn, "hello")
        assert drain(conn, queue).completed == 1
    _, hello = within("stats", "--url", database_url).out.splitlines()
    assert hello.split() == ["hello", "0", "0", "0", "0", "0", "1"]


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


@pytest.mark.parametrize("command", ["stats", "failed"])
def test_a_queue_by_its_module(
    within: Sqlane, app: Callable[..., None], database_url: str, engine: sa.Engine, command: str
) -> None:
    """Its prefix and schema, as `sqlane doctor` takes them."""
    app('"shop_", "Our Jobs"')
    shop = Queue("shop_", "Our Jobs")
    migrations.apply(engine, shop)
    with engine.begin() as conn:
        add_job(conn, shop, "theirs", "status = 'failed', finished_at = now()")
    assert "theirs" in within(command, "app:queue", "--url", database_url).out
    assert "theirs" not in within(command, "--url", database_url).out
    said = problem(within(command, "app:queue", "--prefix", "x_", "--url", database_url))
    assert said.startswith("--prefix x_ contradicts app:queue")


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
