"""The blocks and lists of docs/jobs.md, docs/worker.md and docs/guarantees.md, run and compared with the code."""

import asyncio
import inspect
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa import JobContext, Queue, Snooze, Worker, migrations
from sqlane_sa.cli.group import main
from sqlane_sa.testing import drain
from tests.docs.test_readme import ENQUEUE, MODELS, WORKER
from tests.support import with_driver

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.stem: page.read_text() for page in DOCS.glob("*.md")}
DEFINITIONS, SESSIONS, ENQUEUEING, BY_THE_CLOCK, LOOKING, TESTING = re.findall(
    r"```python\n(.*?)```", PAGES["jobs"], re.S
)
[SIGNATURE] = re.findall(r"```python\n(.*?)```", PAGES["worker"], re.S)


@pytest.fixture
def names() -> dict[str, Any]:
    """The names of the page's blocks, one after the other."""
    names: dict[str, Any] = {}
    for block in (DEFINITIONS, ENQUEUEING, BY_THE_CLOCK, LOOKING):
        exec(block, names)
    return names


def test_every_block_is_run_somewhere() -> None:
    """Those of migrations.md and roles.md in tests/migrations; those of operations.md are examples of answers."""
    assert {name: page.count("```") // 2 for name, page in PAGES.items() if "```" in page} == {
        "jobs": 6,
        "worker": 2,
        "migrations": 9,
        "roles": 6,
        "operations": 2,
        "poolers": 1,
    }


def test_the_pooler_pages_worker_can_be_made(queue: Queue) -> None:
    """Its address is made up: it is not run."""
    made: list[Worker] = []

    class Made(Worker):
        def run(self) -> None:
            made.append(self)

    queue.job("quick")(lambda payload: None)
    [block] = re.findall(r"```python\n(.*?)```", PAGES["poolers"], re.S)
    exec(block, {"create_engine": sa.create_engine, "Worker": Made, "queue": queue})
    assert len(made) == 1


def test_links_lead_somewhere() -> None:
    for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"):
        for target, _, section in (link.partition("#") for link in re.findall(r"\]\(([^)]*)\)", page.read_text())):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} names {target}"
            headings = [re.sub(r"[^\w -]", "", line.lower()) for line in file.read_text().splitlines() if "# " in line]
            assert not section or section in [heading.strip().replace(" ", "-") for heading in headings]


def test_definitions(names: dict[str, Any], conn: sa.Connection) -> None:
    queue, handle, receipt = names["queue"], names["file_return"], names["receipt"]
    assert handle.name == "file_return"
    assert handle.new({"year": 2024}).mutex_keys == ("tax-office",)
    filed, too_old = handle.enqueue(conn, {"year": 2024}).id, handle.enqueue(conn, {"year": 1999}).id
    result = drain(conn, queue)
    assert (result.completed, result.retried, result.failed) == (1, 1, 1)
    assert queue.get(conn, filed).status == "completed"
    assert queue.get(conn, too_old).last_error["message"] == "too long ago"
    assert payloads_of(conn, receipt) == [{"year": 2024, "attempt": 2}]


def test_the_context(queue: Queue, engine: sa.Engine) -> None:
    """`ctx.enqueue` in `async def` commits by itself; `waited` counts from when the job was due."""
    told: list[Any] = []
    after = queue.define("after")

    @queue.job(max_attempts=1)
    async def tell(payload: Any, ctx: JobContext) -> None:
        told.extend((ctx.enqueued_at, ctx.waited))
        ctx.enqueue("after", "stays")
        raise ValueError

    hour = timedelta(hours=1)
    with engine.begin() as conn:
        id_ = tell.enqueue(conn, run_at=datetime.now(UTC) - hour).id
        created = queue.get(conn, id_).created_at  # type: ignore[union-attr]
    Worker(engine, queue).run_until_idle()
    assert told[0] == created
    assert told[1] >= hour
    with engine.connect() as conn:
        assert payloads_of(conn, after) == ["stays"]


@pytest.mark.parametrize("way", ["worker", "drain"])
def test_sessions_of_handlers(
    engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """As many jobs as find a pooled connection that another has left; in a drain each async one has its own loop."""
    models = ModuleType("app.models")
    exec(MODELS, vars(models))
    monkeypatch.setitem(sys.modules, "app", ModuleType("app"))
    monkeypatch.setitem(sys.modules, "app.models", models)
    queue = Queue()
    names: dict[str, Any] = {"queue": queue}
    code = SESSIONS
    for driver in ("psycopg", "asyncpg"):
        url = f'"postgresql+{driver}://localhost/app"'
        assert url in code
        pool = ", poolclass=NullPool" if way == "drain" else ""
        code = code.replace(url, repr(with_driver(database_url, driver)) + pool)
    exec("from sqlalchemy import NullPool\n" + code, names)
    models.Base.metadata.create_all(engine)  # type: ignore[attr-defined]
    with Session(engine) as session, session.begin():
        for number in range(1, 7):
            session.add(models.User(id=number, name="ada"))  # type: ignore[attr-defined]
            handle = names["rename_async" if number % 2 else "rename"]
            handle.enqueue(session, {"id": number, "name": f"grace {number}"}, max_attempts=1)

        @queue.job("close", priority=1)
        async def close(payload: Any) -> None:
            await names["async_engine"].dispose()  # in the loop that opened its connections

        close.enqueue(session)
    if way == "drain":
        assert drain(engine, queue, raise_errors=True).completed == 7
    else:
        Worker(engine, queue, concurrency=1).run_until_idle()
    with engine.connect() as conn:
        found = conn.exec_driver_sql("SELECT name FROM users ORDER BY id").scalars().all()
        assert queue.stats(conn) == {}, caplog.text
    assert found == [f"grace {number}" for number in range(1, 7)]
    names["engine"].dispose()


def payloads_of(conn: sa.Connection, handle: Any) -> list[Any]:
    tables = handle.queue.tables
    join = tables.payloads.join(tables.jobs, tables.jobs.c.id == tables.payloads.c.id)
    found = sa.select(tables.payloads.c.payload).select_from(join).where(tables.jobs.c.job_name == handle.name)
    return list(conn.scalars(found.order_by(tables.jobs.c.id)))


def test_enqueueing(names: dict[str, Any], engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        names["enqueue_some"](session)

    async def enqueue_some() -> None:
        async_engine = create_async_engine(engine.url)
        async with AsyncSession(async_engine) as session, session.begin():
            await names["enqueue_some_async"](session)
        await async_engine.dispose()

    asyncio.run(enqueue_some())
    with engine.connect() as conn:
        stats = names["queue"].stats(conn)
    assert (stats["file_return"].pending, stats["file_return"].due, stats["mail.receipt"].due) == (8, 6, 5)


def test_a_job_by_the_clock(names: dict[str, Any], conn: sa.Connection) -> None:
    for _ in range(2):
        names["every_night"](conn, date(2024, 2, 29))
    assert names["queue"].get(conn, "return-2024-02-29").payload == {"year": 2024}
    assert names["queue"].stats(conn)["file_return"].pending == 1


def test_the_unit_of_a_supervisor() -> None:
    """Its command is one that there is, and it waits for a stop longer than a worker takes for it."""
    [unit] = re.findall(r"```ini\n(.*?)```", PAGES["worker"], re.S)
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    [_, command, *arguments] = settings["ExecStart"].split()
    parsed = main.commands[command].make_context(command, arguments)
    assert (parsed.params["path"], parsed.params["concurrency"]) == ("app.jobs:queue", 20)
    assert int(settings["TimeoutStopSec"]) >= parsed.params["shutdown_timeout"] + 10
    assert (settings["Restart"], settings["Environment"].partition("=")[0]) == ("always", "SQLANE_DATABASE_URL")


def test_the_options_of_a_job() -> None:
    [listed] = re.findall(r"options of each job are (.*?)\.\n", PAGES["jobs"], re.S)
    parameters = inspect.signature(Queue.new).parameters.values()
    assert re.findall(r"`(\w+)`", listed) == [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


def test_the_options_of_a_worker() -> None:
    written: dict[str, Any] = {}
    exec(SIGNATURE.replace("Worker(", "def worker(self, ").rstrip() + ": ...", written)
    expected = inspect.signature(Worker.__init__).parameters
    assert [(one.name, one.kind, one.default) for one in inspect.signature(written["worker"]).parameters.values()] == [
        (one.name, one.kind, one.default) for one in expected.values()
    ]


def test_migrations_in_the_process_of_a_worker(tmp_path: Path) -> None:
    """docs/worker.md: what the env.py of `alembic init` does to the loggers, and what it does with the argument."""
    [argument] = re.findall(r"`fileConfig\(\.\.\., (.*?)\)`", PAGES["worker"])
    code = f"""
import logging.config, sqlane_sa, sys
from alembic import command
from alembic.config import Config
command.init(Config("alembic.ini", stdout=sys.stderr), "alembic")
log = logging.getLogger("sqlane_sa.worker")
logging.config.fileConfig("alembic.ini", {argument})
print(log.disabled)
logging.config.fileConfig("alembic.ini")
print(log.disabled)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["False", "True"]


def test_looking_at_jobs(names: dict[str, Any], engine: sa.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    queue, handle = names["queue"], names["file_return"]
    with engine.begin() as conn:
        failed = handle.enqueue(conn, {"year": 1999}, mutex_keys=["mine"]).id
        drain(conn, queue)
        names["show"](conn)
        said = capsys.readouterr().out.splitlines()
        assert said == ["file_return 0 0 0 0 1", f"{failed} file_return sqlane_sa.Discard too long ago"]
        assert names["run_again"](conn, failed) == (f"{failed}-again", True)
        assert names["run_again"](conn, failed) == (f"{failed}-again", False)
        again = queue.get(conn, f"{failed}-again")
        assert (again.payload, again.mutex_keys, again.attempts) == ({"year": 1999}, ("mine",), 0)
        drain(conn, queue)
        assert names["run_again"](conn, again.id).created

    async def show() -> None:
        async_engine = create_async_engine(engine.url)
        async with async_engine.connect() as conn:
            await conn.run_sync(names["show"])
        await async_engine.dispose()

    asyncio.run(show())
    assert capsys.readouterr().out.startswith("file_return 1 1 0 0 2\n")


def test_in_tests(engine: sa.Engine, database_url: str, tmp_path: Path) -> None:
    """As a test file of a reader's own, beside the README's `app`."""
    (tmp_path / "app").mkdir()
    test = TESTING.replace('"postgresql+psycopg://localhost/app_test"', repr(database_url))
    assert test != TESTING
    create = f"\nimport sqlalchemy\nBase.metadata.create_all(sqlalchemy.create_engine({database_url!r}))\n"
    for name, text in (
        ("app/__init__", ""),
        ("app/models", MODELS + create),
        ("app/jobs", WORKER),
        ("app/sign_up", ENQUEUE),
        ("test_own", test),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_own.py"]
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search, "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    migrations.check(engine, Queue())
    for table in ("sqlane_jobs", "users"):
        with engine.connect() as conn:
            assert conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0


def test_drain_runs_what_is_committed_and_a_snoozing_job_once(queue: Queue, engine: sa.Engine) -> None:
    ran: list[str] = []

    @queue.job(timeout=0.001)
    def nap(payload: Any) -> None:
        ran.append(payload)
        raise Snooze(0)

    with engine.begin() as conn:
        nap.enqueue(conn, "committed before")
    with engine.connect() as conn:
        conn.begin()
        for _ in range(2):
            assert drain(conn, queue, include_delayed=True).released == 1
    assert ran == ["committed before"] * 2


def test_a_transactional_handler_that_commits(queue: Queue, engine: sa.Engine) -> None:
    """docs/guarantees.md: refused, rolled back, a failed attempt; `ctx.session.commit()` and a savepoint are not."""

    @queue.job(transactional=True, max_attempts=1)
    def commits(payload: str, ctx: JobContext) -> None:
        with ctx.connection.begin_nested():
            ctx.connection.exec_driver_sql("INSERT INTO effects VALUES (%s)", (payload,))
        ctx.session.commit()
        if payload == "commit":
            ctx.connection.commit()

    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effects (name text)")
        bad, good = commits.enqueue(conn, "commit").id, commits.enqueue(conn, "savepoint").id
    Worker(engine, queue).run_until_idle()
    with engine.connect() as conn:
        failed = queue.get(conn, bad)
        assert failed is not None and failed.last_error is not None
        assert failed.last_error["type"] == "sqlane_sa.CommitRefusedError"
        assert "must not commit" in failed.last_error["message"] and "savepoint" in failed.last_error["message"]
        assert queue.get(conn, good).status == "completed"  # type: ignore[union-attr]
        assert conn.exec_driver_sql("SELECT name FROM effects").scalars().all() == ["savepoint"]
