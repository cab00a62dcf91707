"""Secrets are where the documentation says, and nowhere else: in no log, no table, no error and no output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, SqlaneError, Worker
from tests.cli.conftest import Sqlane
from tests.support import wait_for_lock_wait, with_driver

PASSWORD, PAYLOAD, LOCAL, MESSAGE, MORE, CAUSE = (
    f"canary-{name}-9d2c" for name in ("password", "payload", "local", "message", "more", "cause")
)
TABLES = ("jobs", "payloads", "mutexes", "waits", "sleepers", "version")


def sqlane(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in the folder of the leaking application."""
    shutil.copy(Path(__file__).with_name("app.py"), folder / "leaking.py")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SQLANE_", "PG"))}
    secrets = {"CANARY_LOCAL": LOCAL, "CANARY_MESSAGE": MESSAGE, "CANARY_MORE": MORE, "CANARY_CAUSE": CAUSE}
    return subprocess.run(
        [sys.executable, "-m", "sqlane_sa", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=kept | secrets | variables,
        timeout=100,
    )


@pytest.fixture
def url(engine: sa.Engine) -> Iterator[str]:
    """The database's, for a user with that password."""
    user = f"user_{engine.url.database}"[:60]
    with engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'")
        conn.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
    yield engine.url.set(username=user, password=PASSWORD).render_as_string(hide_password=False)
    with engine.begin() as conn:
        conn.exec_driver_sql(f"DROP OWNED BY {user}")
        conn.exec_driver_sql(f"DROP ROLE {user}")


@pytest.fixture
def rows(engine: sa.Engine) -> dict[str, str]:
    """Each table as text, read when it is asked for."""

    class Rows(dict[str, str]):
        def __missing__(self, table: str) -> str:
            with engine.connect() as conn:
                return "\n".join(conn.exec_driver_sql(f"SELECT t::text FROM sqlane_{table} AS t").scalars())

    return Rows()


def test_a_worker_at_work(tmp_path: Path, url: str, engine: sa.Engine, rows: dict[str, str]) -> None:
    """With all there is to log. Of an error the first line is in the log, and only then; all of it but its locals in
    `last_error` and in the payload of the failure job. A payload is in its table, and a completed job's is gone."""
    queue = Queue()
    for name in ("leak", "leak_async", "leak_nothing"):
        queue.define(name, max_attempts=2 if name == "leak" else 1, failure_job="after" if name == "leak" else None)
    with engine.begin() as conn:
        queue.enqueue(conn, "leak_nothing", PAYLOAD)
    options = ("--url", url, "--log-level", "debug", "--until-idle", "--poll-interval", "0.1")
    ended = sqlane(tmp_path, "worker", "leaking:queue", *options)
    assert ended.returncode == 0, ended.stderr
    assert all(PAYLOAD not in rows[table] for table in TABLES)
    with engine.begin() as conn:
        failing = [queue.enqueue(conn, name, {"secret": PAYLOAD}).id for name in ("leak", "leak_async")]
        conn.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
        )
    ended = sqlane(tmp_path, "worker", "leaking:queue", *options, "--names", "leak,leak_async")
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout + ended.stderr
    levels: dict[bool, list[str]] = {True: [], False: []}
    loud = False
    for line in said.splitlines():
        if " sqlane_sa" in line or " asyncio" in line:
            loud = any(f" {level} " in line for level in ("WARNING", "ERROR", "CRITICAL"))
        levels[loud].append(line)
    loud_lines, quiet_lines = "\n".join(levels[True]), "\n".join(levels[False])
    assert loud_lines.count(MESSAGE) == 2
    assert MORE not in said
    assert CAUSE not in loud_lines
    assert CAUSE in quiet_lines, "DEBUG shows tracebacks, with the messages of causes"
    assert all(secret not in said for secret in (PASSWORD, PAYLOAD, LOCAL))
    everything = {table: rows[table] for table in TABLES}
    with engine.connect() as conn:
        errors = [str(job.last_error) for id_ in failing if (job := queue.get(conn, id_))]
    assert all(secret in error for error in errors for secret in (MESSAGE, MORE, CAUSE))
    assert PAYLOAD not in everything["jobs"]
    assert everything["payloads"].count(PAYLOAD) == 3, "two failed jobs, and the failure job of one"
    for table, text in everything.items():
        assert LOCAL not in text
        assert PASSWORD not in text, table
        if table not in ("jobs", "payloads"):
            assert all(secret not in text for secret in (MESSAGE, MORE, CAUSE, PAYLOAD)), table


COMMANDS = [
    ("stats",),
    ("doctor",),
    ("migrate", "current"),
    ("migrate", "check"),
    ("worker", "leaking:queue", "--until-idle"),
]


@pytest.mark.parametrize("traceback", ["", "1"])
@pytest.mark.parametrize("fault", ["host", "user", "database", "port", "driver", "option"])
def test_a_password_in_a_url_that_is_wrong(
    within: Sqlane, tmp_path: Path, url: str, fault: str, traceback: str
) -> None:
    """However a command fails, with the whole traceback too."""
    wrong = sa.make_url(url)
    text = {
        "host": wrong.set(host="no such host").render_as_string(hide_password=False),
        "user": wrong.set(username="nobody_there").render_as_string(hide_password=False),
        "database": wrong.set(database="not there").render_as_string(hide_password=False),
        "port": url.replace(f":{wrong.port}/", ":port/"),
        "driver": wrong.set(drivername="postgresql+nothing").render_as_string(hide_password=False),
        "option": wrong.update_query_dict({"colour": "red"}).render_as_string(hide_password=False),
    }[fault]
    assert PASSWORD in text
    (tmp_path / "leaking.py").write_text("from sqlane_sa import Queue\nqueue = Queue()\nqueue.job('n')(print)\n")
    for command in COMMANDS:
        answer = within(*command, "--url", text, SQLANE_TRACEBACK=traceback)
        assert answer.code == 1, answer
        assert PASSWORD not in answer.out + answer.err
        assert ("Traceback" in answer.err) is bool(traceback)


def test_what_things_show_of_themselves(url: str) -> None:
    """`repr` and `str`, which end up in logs."""
    queue = Queue()
    queue.job("n")(print)
    engine = sa.create_engine(url)
    worker = Worker(engine, queue)
    with engine.connect() as conn, pytest.raises(SqlaneError) as caught:
        queue.enqueue(conn, "m", PAYLOAD)
    engine.dispose()
    shown = [
        each for thing in (engine, worker, queue, queue.tables, caught.value) for each in (repr(thing), str(thing))
    ]
    assert all(PASSWORD not in each and PAYLOAD not in each for each in shown)


@pytest.mark.parametrize("driver", ["psycopg", "pg8000", "psycopg2"])
def test_statements_hold_no_values(engine: sa.Engine, database_url: str, driver: str) -> None:
    """They travel apart from the text, which is what pg_stat_activity and a server's log show; but psycopg2 writes them
    into it. The errors of the application's own engine show parameters, as the application chose."""
    queue = Queue()
    queue.define("n")
    seen: list[str] = []
    other = sa.create_engine(with_driver(database_url, driver), poolclass=sa.NullPool)
    with engine.connect() as blocking:
        blocking.exec_driver_sql("LOCK TABLE sqlane_jobs")
        thread = threading.Thread(target=look_and_cancel, args=(engine, seen))
        thread.start()
        with pytest.raises(sa.exc.DBAPIError) as caught, other.begin() as conn:
            queue.enqueue(conn, "n", PAYLOAD)
        thread.join()
    assert "INSERT INTO sqlane_payloads" in seen[0]
    assert (PAYLOAD in seen[0]) is (driver == "psycopg2")
    assert PAYLOAD in str(caught.value)


def look_and_cancel(engine: sa.Engine, seen: list[str]) -> None:
    [pid] = wait_for_lock_wait(engine)
    with engine.begin() as conn:
        query = sa.text("SELECT query FROM pg_stat_activity WHERE pid = :pid")
        seen.append(conn.execute(query, {"pid": pid}).scalar_one())
        conn.execute(sa.text("SELECT pg_cancel_backend(:pid)"), {"pid": pid})
