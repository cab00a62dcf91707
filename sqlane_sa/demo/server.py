"""A PostgreSQL server of our own for the demo and the tests, which ends with the process that started it.

On Linux the kernel ends it, whatever ends the process; elsewhere it outlives a process that was killed.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from sqlalchemy import URL

from sqlane_sa.demo.account import other_account
from sqlane_sa.demo.binaries import Binaries, copy_binaries, find_binaries, reachable
from sqlane_sa.demo.errors import ServerError
from sqlane_sa.demo.folder import Folder
from sqlane_sa.demo.process import Process

__all__ = ["Binaries", "Server", "ServerError", "find_binaries"]

USER = "postgres"
PORT = 5432
START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
PORT_TRIES = 5
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Server:
    """A server with an empty cluster, in a temporary folder and reachable through a socket that only we can open.

    `with Server() as server:` starts it, and removes it with its data. `settings` are configuration parameters,
    `fsync=False` trades safety of the data for speed, `tcp=True` listens on 127.0.0.1 too, where every user of the
    machine may connect. `parent` is where to make the folder. Start it from any thread. As root it runs as `nobody`.

    Raises `ServerError` when there are no binaries or the server does not start.
    """

    def __init__(
        self,
        *,
        fsync: bool = True,
        binaries: Binaries | None = None,
        settings: Mapping[str, str | int | bool] | None = None,
        tcp: bool = False,
        parent: Path | None = None,
    ) -> None:
        self.binaries = binaries or find_binaries()
        self.tcp = tcp
        self.port = PORT
        self._settings = {"fsync": fsync, **(settings or {})}
        self._bin_dir = self.binaries.bin_dir
        self._account = other_account()
        self._folder: Folder | None = None
        self._process: Process | None = None
        self._parent = parent
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, database: str = "postgres", *, tcp: bool = False) -> str:
        """The SQLAlchemy URL of a database, through the socket or, with `tcp`, through 127.0.0.1."""
        at = URL.create("postgresql+psycopg", USER, database=database)
        if tcp:
            if not self.tcp:
                raise ServerError("this server listens on its socket only; start it with Server(tcp=True)")
            return at.set(host="127.0.0.1", port=self.port).render_as_string()
        # The port too, for a PGPORT in the environment would name another socket.
        query = {"host": str(self._require_folder().sockets), "port": str(self.port)}
        return at.set(query=query).render_as_string()

    @property
    def pid(self) -> int:
        """The process id of the running server. Raises `ServerError` when it does not run."""
        if self._process is None or not self._process.running:
            raise ServerError("the server does not run")
        return self._process.pid

    @property
    def log(self) -> Path:
        """The file with everything the server wrote."""
        return self._require_folder().log

    @property
    def data(self) -> Path:
        """The folder of the cluster."""
        return self._require_folder().data

    def start(self) -> None:
        """Start, on the data of the last run if there was one; a running server stays as it is."""
        if self._process is not None and self._process.running:
            return
        if self._folder is not None:
            self._start_on_data()
            return
        try:
            self._make_cluster()
            self._start_on_free_port()
        except BaseException:
            self.close()
            raise

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and keep the data. "fast" ends every session in order, "immediate" crashes: the next start recovers."""
        if self._process is None:
            return
        for sent in (STOP_SIGNALS[mode], signal.SIGQUIT, signal.SIGKILL):
            self._process.send(sent)
            if self._process.wait(STOP_TIMEOUT):
                break
        self._process = None

    def close(self) -> None:
        """Stop, and remove the data and everything else; safe to repeat."""
        if os.getpid() != self._owner or self._folder is None:
            return
        atexit.unregister(self.close)
        self.stop()
        self._folder.remove()
        self._folder = None

    def _require_folder(self) -> Folder:
        if self._folder is None:
            raise ServerError("the server was not started, or is closed")
        return self._folder

    def _make_cluster(self) -> None:
        self._folder = folder = Folder(self._account, self._parent)
        self._bin_dir = self.binaries.bin_dir
        atexit.register(self.close)
        if self._account is not None and not reachable(self.binaries):
            self._bin_dir = copy_binaries(self.binaries, folder.path / "postgres")
        options = ["--no-sync", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C"]
        initdb = self._run("initdb", [f"--pgdata={folder.data}", *options])
        try:
            initdb.wait(START_TIMEOUT)
        finally:
            # An interruption too: what still writes would leave files in a folder that is being removed.
            initdb.kill()
        if initdb.returncode != 0:
            raise ServerError(f"initdb of {self.binaries} failed", folder.log_tail())

    def _start_on_free_port(self) -> None:
        for tries_left in reversed(range(PORT_TRIES)):
            self.port = _free_port() if self.tcp else PORT
            try:
                self._start_on_data()
                return
            except ServerError as error:
                # Somebody may have taken the port between our look and the server's.
                if tries_left == 0 or "could not bind" not in error.log:
                    raise

    def _start_on_data(self) -> None:
        folder = self._require_folder()
        settings = {
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            "port": self.port,
            "unix_socket_directories": folder.sockets,
            "unix_socket_permissions": "0700",
            **self._settings,
        }
        options = [f"--{name}={_shown(value)}" for name, value in settings.items()]
        self._process = self._run("postgres", ["-D", str(folder.data), *options])
        self._wait_until_ready(self._process, folder)

    def _run(self, program: str, arguments: list[str]) -> Process:
        return Process([str(self._bin_dir / program), *arguments], self._account, self._require_folder())

    def _wait_until_ready(self, process: Process, folder: Folder) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not _is_ready(folder.data, process.pid):
            if process.wait(0.01):
                raise ServerError(f"{self.binaries} ended while it started", folder.log_tail())
            if time.monotonic() > deadline:
                self.stop("immediate")
                raise ServerError(f"{self.binaries} was not ready after {START_TIMEOUT:g} s", folder.log_tail())


def _is_ready(data: Path, pid: int) -> bool:
    """As pg_ctl does it: the last line of postmaster.pid is the state, the first says whose it is."""
    try:
        lines = (data / "postmaster.pid").read_text().split("\n")
    except FileNotFoundError:
        return False
    return lines[0] == str(pid) and len(lines) > 7 and lines[7].strip() == "ready"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
