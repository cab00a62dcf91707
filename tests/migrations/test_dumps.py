"""Up, down and up again leaves what pg_dump shows the same, step by step, and all that is the application's."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.demo.server import find_binaries
from tests.migrations import usage

if TYPE_CHECKING:
    from conftest import Application

USERS = ('CREATE SCHEMA "Mine"', "CREATE TABLE users (name text PRIMARY KEY)", 'CREATE TABLE "Mine".pets (name text)')
Dump = Callable[[sa.Engine], str]


@pytest.fixture
def dump(server: Any, admin: sa.Engine) -> Dump:
    """What `pg_dump -s` writes about a database."""
    with admin.connect() as conn:
        version = int(conn.exec_driver_sql("SHOW server_version_num").scalar_one()) // 10000
    program = pg_dump(version)
    if program is None:
        pytest.skip(f"no pg_dump of version {version} or later, beside the server's programs or on the PATH")

    def take(engine: sa.Engine) -> str:
        url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        done = subprocess.run([program, "-s", url], capture_output=True, text=True, check=True)
        # Lines with a random word, since 2025.
        return re.sub(r"^\\(un)?restrict .*\n", "", done.stdout, flags=re.M)

    return take


def pg_dump(version: int) -> Path | None:
    """One that understands a server of this major version."""
    folders = [find_binaries().bin_dir] if "SQLANE_TEST_DATABASE_URL" not in os.environ else []
    on_path = shutil.which("pg_dump")
    for program in [*(folder / "pg_dump" for folder in folders), *([Path(on_path)] if on_path else [])]:
        if program.exists():
            shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
            found = re.search(r"\d+", shown)
            if found is not None and int(found[0]) >= version:
                return program
    return None


class ByChain:
    """The application's own chain, with a revision of its own between the two of the package."""

    STEPS = 4

    def __init__(self, application: "Application", queue: Queue) -> None:
        at = f"prefix={queue.tables.prefix!r}, schema={queue.tables.schema!r}"
        application.revision("u1")
        application.revision("u2", "u1", f"migrations.upgrade('0001', {at})", f"migrations.downgrade({at})")
        application.revision("u3", "u2")
        second = f"'0002', '0001', {at})", f"'0001', '0002', {at})"
        application.revision("u4", "u3", f"migrations.upgrade({second[0]}", f"migrations.downgrade({second[1]}")
        self.application = application

    def up(self) -> None:
        self.application.upgrade("+1")

    def down(self) -> None:
        self.application.downgrade("-1")


class ByApply:
    """Without an Alembic environment."""

    STEPS = 2

    def __init__(self, application: "Application", queue: Queue) -> None:
        self.engine, self.queue = application.config.attributes["engine"], queue

    def up(self) -> None:
        at = migrations.current(self.engine, self.queue)
        migrations.apply(self.engine, self.queue, "0002" if at else "0001")

    def down(self) -> None:
        at = migrations.current(self.engine, self.queue)
        migrations.revert(self.engine, self.queue, "0001" if at == "sqlane_0002" else "base")


@pytest.mark.usefixtures("two_revisions")
@pytest.mark.parametrize(("door", "queue"), [(ByChain, Queue()), (ByApply, Queue('my "%s" ', "Mine"))])
def test_three_rounds_step_by_step_with_rows(
    empty: sa.Engine, application: "Application", dump: Dump, queue: Queue, door: type[ByChain | ByApply]
) -> None:
    with empty.begin() as conn:
        for statement in USERS:
            conn.exec_driver_sql(statement)
        conn.exec_driver_sql("INSERT INTO users VALUES ('Ada')")
    chain = door(application, queue)
    if door is ByChain:
        # Alembic's own version table comes with the first and stays.
        chain.up()
        chain.down()
    dumps = [dump(empty)]
    for _ in range(3):
        for step in range(1, chain.STEPS + 1):
            chain.up()
            dumps.append(dump(empty))
            assert dumps[-1] == dumps[step]
            kept = fill(empty, queue)
        for step in reversed(range(chain.STEPS)):
            chain.down()
            assert dump(empty) == dumps[step]
            assert migrations.current(empty, queue) is None or rows(empty, queue) == kept
    assert len(set(dumps)) == 3, "the revisions differ, and the application's own change nothing"
    with empty.connect() as conn:
        assert conn.exec_driver_sql("SELECT name FROM users").scalars().all() == ["Ada"]


def fill(engine: sa.Engine, queue: Queue) -> dict[str, int]:
    """Rows in every table, where there are tables; how many there are now."""
    if migrations.current(engine, queue) is None:
        return {}
    with engine.begin() as conn:
        usage.work(conn, queue)
        usage.insert(conn, queue, mutex_keys=["waits"])
        usage.fall_asleep(conn, queue)
    return rows(engine, queue)


def rows(engine: sa.Engine, queue: Queue) -> dict[str, int]:
    tables = [table for table in queue.metadata.tables.values() if table is not queue.tables.version]
    with engine.connect() as conn:
        return {table.name: conn.scalar(sa.select(sa.func.count()).select_from(table)) or 0 for table in tables}
