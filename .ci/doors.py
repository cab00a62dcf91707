"""The four doors to the tables, from an installed package, in projects that `alembic init` makes: docs/migrations.md.

Run with the path of that page: what goes into the projects is what it says.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.demo.server import Server

PAGE = Path(sys.argv[1]).read_text()
SCRIPTS = Path(sysconfig.get_path("scripts"))


def block(language: str, mark: str) -> str:
    """The block of the page that has `mark` in it."""
    [found] = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.S) if mark in text]
    return str(found)


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([SCRIPTS / command[0], *command[1:]], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def replace(file: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, lambda _: new, file.read_text(), flags=re.M)
    assert count == 1, f"{pattern} is {count} times in {file}"
    file.write_text(text)


def init(folder: Path, url: str) -> None:
    run(folder, "alembic", "init", "alembic")
    replace(folder / "alembic.ini", r"^sqlalchemy\.url = .*$", f"sqlalchemy.url = {url.replace('%', '%%')}")


def a_call(folder: Path, url: str) -> None:
    init(folder, url)
    run(folder, "alembic", "revision", "-m", "job queue")
    [file] = (folder / "alembic" / "versions").glob("*.py")
    file.write_text(file.read_text().partition("def upgrade")[0] + block("python", 'to="0001")'))
    run(folder, "alembic", "upgrade", "head")


def autogenerate(folder: Path, url: str) -> None:
    init(folder, url)
    plugin = block("python", "autogenerate_plugins")
    replace(
        folder / "alembic" / "env.py",
        r" *context\.configure\(\s*connection=connection,\s*target_metadata=target_metadata\s*\)\n",
        plugin,
    )
    replace(
        folder / "alembic" / "env.py",
        r"^target_metadata = None$",
        "import sqlalchemy as sa\ntarget_metadata = sa.MetaData()",
    )
    run(folder, "alembic", "revision", "--autogenerate", "-m", "job queue")
    run(folder, "alembic", "upgrade", "head")
    assert "No new upgrade operations" in run(folder, "alembic", "check")


def a_branch(folder: Path, url: str) -> None:
    init(folder, url)
    replace(folder / "alembic.ini", r"^path_separator = .*$", block("ini", "version_locations"))
    run(folder, "alembic", "upgrade", "heads")


def command_line(folder: Path, url: str) -> None:
    run(folder, "sqlane", "migrate", "--url", url)


DOORS: list[Callable[[Path, str], None]] = [a_call, autogenerate, a_branch, command_line]

with Server(fsync=False) as server:
    admin = sa.create_engine(server.url(), isolation_level="AUTOCOMMIT")
    for door in DOORS:
        with admin.connect() as conn:
            conn.exec_driver_sql(f"CREATE DATABASE {door.__name__}")
        with tempfile.TemporaryDirectory() as name:
            door(Path(name), server.url(door.__name__))
        engine = sa.create_engine(server.url(door.__name__))
        migrations.check(engine, Queue())
        engine.dispose()
    admin.dispose()

print(f"{len(DOORS)} doors led to {migrations.head()}: {', '.join(door.__name__ for door in DOORS)}")
