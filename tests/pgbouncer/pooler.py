"""A PgBouncer of our own in front of a server, which ends with the process that started it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from sqlane_sa.demo.account import other_account
from sqlane_sa.demo.folder import Folder
from sqlane_sa.demo.process import Process
from tests.support import wait_until

SETTINGS = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {pool_mode}
default_pool_size = {pool_size}
max_client_conn = 1000
query_wait_timeout = {query_wait_timeout}
server_check_delay = 0
ignore_startup_parameters = extra_float_digits
"""


def program() -> str | None:
    """Debian installs it where only root's PATH leads."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


class PgBouncer:
    """`with PgBouncer(url) as pooler:` starts it in front of every database of the server of `url`.

    `query_wait_timeout` seconds is how long a transaction waits for one of the `pool_size` connections of its database.
    """

    def __init__(
        self, url: str, *, pool_mode: str = "transaction", pool_size: int = 4, query_wait_timeout: int = 20
    ) -> None:
        self._server = sa.make_url(url)
        self._options = {"pool_mode": pool_mode, "pool_size": pool_size, "query_wait_timeout": query_wait_timeout}
        self._port = 0

    def __enter__(self) -> Self:
        account = other_account()
        self._folder = Folder(account)
        try:
            self._port = free_port()
            settings = self._write(account is not None)
            found = program()
            assert found is not None, "apt-get install pgbouncer"
            self._process = Process([found, str(settings)], account, self._folder)
            try:
                wait_until(self._answers, message=f"PgBouncer at port {self._port}")
            except BaseException:
                self._process.kill()
                raise
        except BaseException:
            self._folder.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._folder.remove()

    def url(self, url: str) -> str:
        """The same database, user and driver through the pooler."""
        at = sa.make_url(url).set(host="127.0.0.1", port=self._port, query={})
        return at.render_as_string(hide_password=False)

    @property
    def port(self) -> int:
        return self._port

    @property
    def log(self) -> Path:
        return self._folder.log

    def _write(self, for_another_account: bool) -> Path:
        users, settings = self._folder.path / "users", self._folder.path / "pgbouncer.ini"
        users.write_text(f'"{self._server.username}" "{self._server.password or ""}"\n')
        to = {"host": self._server.host, "port": self._server.port, "listen_port": self._port, "users": users}
        settings.write_text(SETTINGS.format(**to, **self._options))
        if for_another_account:
            for path in (users, settings):
                path.chmod(0o644)
        return settings

    def _answers(self) -> bool:
        assert self._process.running, self._folder.log_tail()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
