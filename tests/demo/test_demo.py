"""`sqlane demo` as a process, on a server of its own and on a given one, to its end and interrupted."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa.demo.promises import PROMISES
from tests.demo.process import command, environment, is_alive, processes_of, schemas, started

demo_command = importlib.import_module("sqlane_sa.cli.demo")
"""The package has the command by this name."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder for temporary files, open to all and not too deep for a socket."""
    path = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def assert_nothing_is_left(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    assert processes_of(folder) == []


class TestOwnServer:
    def test_to_the_end(self, folder: Path) -> None:
        """Whatever SQLANE_DATABASE_URL says."""
        given = {"TMPDIR": str(folder), "SQLANE_DATABASE_URL": "postgresql://nobody.asks.this.host/d"}
        with started("--orders", "60", **given) as demo:
            pids = demo.worker_pids()
            assert processes_of(folder) != []
            code, out, err = demo.end()
        assert (code, err) == (0, ""), out
        lines = out.splitlines()
        assert lines[0].startswith("starting PostgreSQL 18.")
        assert all(re.search(re.escape(promise.text) + r"  .*\d.*  yes$", out, re.M) for promise in PROMISES)
        assert "60 of 60 orders placed, 185 of 185 jobs ended" in lines
        assert lines[-1].startswith("all 9 promises kept: 185 jobs of 60 orders by 2 workers in ")
        assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
        assert not any(map(is_alive, pids))
        assert_nothing_is_left(folder)

    def test_interrupted(self, folder: Path) -> None:
        """As by a terminal that is closed."""
        number = signal.SIGHUP
        with started("--orders", "1000000", TMPDIR=str(folder)) as demo:
            pids = demo.worker_pids()
            demo.read_until(r"^[\d,]+ of 1,000,000 orders placed")
            demo.process.send_signal(number)
            code, _, err = demo.end()
        assert (code, err) == (128 + number, f"sqlane: interrupted by {number.name}; nothing was left behind\n")
        assert not any(map(is_alive, pids))
        assert_nothing_is_left(folder)

    def test_interrupted_at_its_start(self, folder: Path) -> None:
        with started(TMPDIR=str(folder)) as demo:
            demo.read_until("starting PostgreSQL")
            demo.process.send_signal(signal.SIGTERM)
            code, out, err = demo.end()
        assert (code, err) == (143, "sqlane: interrupted by SIGTERM; nothing was left behind\n")
        assert len(out.splitlines()) == 1
        assert_nothing_is_left(folder)

    def test_kept_until_ctrl_c(self, folder: Path) -> None:
        with started("--orders", "60", "--keep", TMPDIR=str(folder)) as demo:
            schema = demo.read_until(r"sqlane stats --schema (sqlane_demo_\w+) \\$").group(1)
            [url] = shlex.split(demo.read_until(r"  --url (.*)$").group(1))
            demo.read_until("the server runs until Ctrl-C")
            (table,) = [line for line in look(url, schema) if line.startswith("order.charge")]
            assert table.split()[-2] == "2"
            demo.process.send_signal(signal.SIGINT)
            code, out, err = demo.end()
        assert (code, err) == (0, ""), out
        assert out.endswith("the server is removed\n")
        assert_nothing_is_left(folder)


def look(url: str, schema: str) -> list[str]:
    done = subprocess.run(
        command("stats", "--url", url, "--schema", schema), capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class TestGivenServer:
    def test_to_the_end(self, database_url: str) -> None:
        with started("--orders", "60", "--url", database_url) as demo:
            pids = demo.worker_pids()
            assert len(schemas(database_url)) == 1
            code, out, err = demo.end()
        assert (code, err) == (0, ""), out
        url = sa.make_url(database_url)
        assert out.startswith(f"postgres@127.0.0.1:{url.port}/{url.database}: PostgreSQL ")
        assert out.splitlines()[-1].startswith("all 9 promises kept")
        assert schemas(database_url) == []
        assert not any(map(is_alive, pids))

    def test_kept_with_a_command_that_works_and_no_password(
        self, database_url: str, engine: sa.Engine, tmp_path: Path
    ) -> None:
        """Pasted into a shell, for a user whose name a shell would take for more."""
        role = f"it's $HOME & `{uuid.uuid4().hex}`"
        with engine.begin() as conn:
            conn.exec_driver_sql(f'CREATE ROLE "{role}" LOGIN SUPERUSER')
        try:
            url = sa.make_url(database_url).set(username=role, password="s3cr:t/@'$x")
            with started("--orders", "60", "--keep", "--url", url.render_as_string(hide_password=False)) as demo:
                code, out, err = demo.end()
            assert (code, err) == (0, ""), out
            assert "s3cr" not in out and "to look at them (with the password in PGPASSWORD):" in out
            [pasted] = re.findall(r"^  (sqlane stats .*\\\n .*)$", out, re.M)
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["sh", "-c", pasted], capture_output=True, text=True, env=environment(PATH=path), cwd=tmp_path
            )
            assert "order.charge" in done.stdout, done.stderr
        finally:
            with engine.begin() as conn:
                for schema in schemas(database_url):
                    conn.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
                conn.exec_driver_sql(f'DROP ROLE "{role}"')

    @pytest.mark.parametrize(
        ("url", "typed", "hint"),
        [
            ("postgresql+psycopg://me@h/d", "postgresql://me@h/d", False),
            ("postgresql+pg8000://me:pw@h:1/d", "postgresql://me@h:1/d", True),
            ("postgresql://me@/d?host=a:1&host=b&password=pw", "postgresql://me@/d?host=a%3A1&host=b", True),
            ("postgresql://a'$b:pw@h/d", "postgresql://a%27%24b@h/d", True),
        ],
    )
    def test_a_url_without_its_password(self, url: str, typed: str, hint: bool) -> None:
        found, said = demo_command.without_password(sa.make_url(url))
        assert (shlex.split(found), bool(said)) == ([typed], hint)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted(self, database_url: str, number: signal.Signals) -> None:
        with started("--orders", "1000000", "--keep", "--url", database_url) as demo:
            pids = demo.worker_pids()
            demo.read_until(r"^[\d,]+ of 1,000,000 orders placed")
            demo.process.send_signal(number)
            code, _, err = demo.end()
        assert (code, err) == (128 + number, f"sqlane: interrupted by {number.name}; nothing was left behind\n")
        assert schemas(database_url) == []
        assert not any(map(is_alive, pids))

    def test_a_killed_worker_is_said_with_its_log(self, database_url: str) -> None:
        with started("--orders", "1000000", "--url", database_url) as demo:
            pids = demo.worker_pids()
            demo.read_until(r"^[\d,]+ of 1,000,000 orders placed")
            os.kill(pids[0], signal.SIGKILL)
            code, _, err = demo.end()
        assert code == 1
        assert err.startswith(f"sqlane: worker {pids[0]} ended with exit code -9")
        assert "Traceback" not in err
        assert schemas(database_url) == []
        assert not any(map(is_alive, pids))

    def test_a_user_who_may_not(self, database_url: str, engine: sa.Engine) -> None:
        with engine.begin() as conn:
            conn.exec_driver_sql("CREATE ROLE guest LOGIN")
        try:
            url = sa.make_url(database_url).set(username="guest").render_as_string(hide_password=False)
            with started("--url", url) as demo:
                code, _, err = demo.end()
        finally:
            with engine.begin() as conn:
                conn.exec_driver_sql("DROP ROLE guest")
        assert code == 1
        assert re.fullmatch(r"sqlane: guest@.* refused: permission denied for database .*; grant the right .*\n", err)
