"""`sqlane worker` as a process: it runs the jobs of the queue that it is told of, and ends when it is told to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from tests.cli.conftest import Answer, Sqlane, Start, ended, problem
from tests.migrations.test_autogenerate import needs_plugins

App = Callable[..., None]
Noted = Callable[[int], list[str]]


@pytest.fixture
def enqueue(engine: sa.Engine) -> Callable[..., str]:
    def enqueue_one(name: str, payload: object = None, queue: Queue | None = None) -> str:
        # Without definitions of handlers, as a producer of jobs may be.
        producer = Queue() if queue is None else Queue(queue.tables.prefix, queue.tables.schema)
        with engine.begin() as conn:
            return producer.define(name, max_attempts=1).enqueue(conn, payload).id

    return enqueue_one


def status(engine: sa.Engine, id_: str, queue: Queue | None = None) -> str:
    with engine.connect() as conn:
        job = (queue or Queue()).get(conn, id_)
    assert job is not None
    return job.status


def log_lines(answer: Answer) -> list[str]:
    """What it logged, without the times; nothing else may be on stderr."""
    lines = answer.err.splitlines()
    assert all(" sqlane_sa" in line or " app" in line for line in lines), answer.err
    return [line.split(" ", 2)[2] for line in lines]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_runs_jobs_until_it_is_told_to_end(
    start: Start,
    app: App,
    noted: Noted,
    engine: sa.Engine,
    database_url: str,
    enqueue: Callable[..., str],
    number: signal.Signals,
) -> None:
    app()
    ids = [enqueue("note", "before")]
    worker = start("worker", "app:queue", SQLANE_DATABASE_URL=database_url)
    noted(1)
    ids.append(enqueue("note", "meanwhile"))
    assert noted(2) == ["before", "meanwhile"]
    answer = ended(worker, number)
    assert (answer.code, answer.out) == (0, "")
    assert [status(engine, id_) for id_ in ids] == ["completed"] * 2
    # One line per event, and nobody else's.
    lines = log_lines(answer)
    assert len(lines) == len(set(lines))
    assert all(line.startswith("INFO sqlane_sa.worker: ") for line in lines)


def test_until_idle(
    sqlane: Sqlane, app: App, noted: Noted, engine: sa.Engine, database_url: str, enqueue: Callable[..., str]
) -> None:
    """The failure of a job is the job's, and not the command's."""
    app()
    ids = [enqueue("note", "x"), enqueue("fail")]
    answer = sqlane("worker", "app:queue", "--until-idle", "--url", database_url)
    assert (answer.code, answer.out) == (0, "")
    assert noted(1) == ["x"]
    assert [status(engine, id_) for id_ in ids] == ["completed", "failed"]
    (failed,) = [line for line in log_lines(answer) if "of no use" in line]
    assert ids[1] in failed


def test_names(
    sqlane: Sqlane, app: App, noted: Noted, engine: sa.Engine, database_url: str, enqueue: Callable[..., str]
) -> None:
    app()
    ids = {name: enqueue(name, name) for name in ("note", "other", "fail")}
    served = ("--names", "note, other", "--names", "other")
    answer = sqlane("worker", "app:queue", "--until-idle", *served, "--log-level", "WARNING", "--url", database_url)
    assert answer == (0, "", "")
    assert sorted(noted(2)) == ["note", "other"]
    assert status(engine, ids["fail"]) == "pending"


def test_a_queue_elsewhere(
    sqlane: Sqlane,
    within: Sqlane,
    app: App,
    noted: Noted,
    engine: sa.Engine,
    database_url: str,
    enqueue: Callable[..., str],
) -> None:
    """The prefix and schema are the queue's; the options are compared with them."""
    queue = Queue("shop_", "Our Jobs")
    migrations.apply(engine, queue)
    app("'shop_', 'Our Jobs'")
    id_ = enqueue("note", "there", queue)
    at = ("worker", "app:queue", "--until-idle", "--url", database_url)
    said = problem(within(*at, "--prefix", "other_"))
    assert said.startswith("--prefix other_ contradicts app:queue, which has 'shop_'; leave the option out")
    said = problem(within(*at, "--schema", "public"))
    assert said.startswith("--schema public contradicts app:queue, which has 'Our Jobs'; leave the option out")
    assert status(engine, id_, queue) == "pending"
    assert sqlane(*at, "--prefix", "shop_", "--schema", "Our Jobs").code == 0
    assert noted(1) == ["there"]
    assert status(engine, id_, queue) == "completed"


def test_a_package_in_the_current_folder_and_a_nested_queue(
    sqlane: Sqlane, app: App, noted: Noted, tmp_path: Path, database_url: str, enqueue: Callable[..., str]
) -> None:
    (tmp_path / "shop").mkdir()
    app(name="shop/jobs.py", more="\nclass Held:\n    inner = queue\n")
    enqueue("note", "nested")
    assert sqlane("worker", "shop.jobs:Held.inner", "--until-idle", "--url", database_url).code == 0
    assert noted(1) == ["nested"]


def test_the_database_goes_away(
    start: Start, app: App, noted: Noted, database_url: str, enqueue: Callable[..., str], engine: sa.Engine
) -> None:
    """The worker tries again by itself."""
    app()
    enqueue("note", "one")
    worker = start("worker", "app:queue", "--poll-interval", "0.1", "--url", database_url)
    noted(1)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'sqlane worker'"
        )
    enqueue("note", "two")
    assert noted(2) == ["one", "two"]
    answer = ended(worker, signal.SIGTERM)
    assert answer.code == 0


def test_an_applications_logging_stays_its_own(
    sqlane: Sqlane, app: App, database_url: str, enqueue: Callable[..., str]
) -> None:
    """O148: one line per event, in the application's format."""
    own = "\nimport logging\nlogging.basicConfig(level='INFO', format='mine app %(name)s %(message)s')\n"
    app(more=own)
    enqueue("fail")
    lines = sqlane("worker", "app:queue", "--until-idle", "--url", database_url).err.splitlines()
    assert len([line for line in lines if "of no use" in line]) == 1
    assert all(line.startswith("mine app ") for line in lines)


@pytest.mark.parametrize("modules", ["sqlane_sa", "sqlane_sa, sqlane_sa.migrations, sqlane_sa.cli, sqlane_sa.testing"])
def test_an_import_leaves_logging_alone(modules: str) -> None:
    """O148"""
    script = f"""
import logging
before = logging.root.level, list(logging.root.handlers)
import {modules}
assert before == (logging.root.level, list(logging.root.handlers)), logging.root.handlers
logging.basicConfig(level="INFO", format="%(message)s")
logging.getLogger("sqlane_sa.worker").info("once")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "once\n")


@needs_plugins
@pytest.mark.parametrize("asked", ["", "logging.getLogger('alembic').setLevel('INFO')"])
def test_alembic_says_nothing_of_its_plugins_unless_it_is_asked(asked: str) -> None:
    """It is loaded when there is something to say about the tables."""
    script = f"""
import logging
logging.basicConfig(level="INFO", format="%(name)s %(message)s")
{asked}
import sqlane_sa.migrations
assert logging.getLogger("alembic.runtime.plugins").level == logging.NOTSET
logging.getLogger("alembic.runtime.plugins").info("later")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    *setup, later = done.stderr.splitlines()
    assert later == "alembic.runtime.plugins later"
    assert bool(setup) is bool(asked)
