"""A node of a Patroni cluster: Patroni and the server that it runs."""

from __future__ import annotations

import http.client
import json
import random
import socket
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from sqlane_sa.demo.account import Account
from sqlane_sa.demo.folder import Folder
from sqlane_sa.demo.process import Process
from sqlane_sa.demo.server import USER
from tests.conftest import memory_folder
from tests.faults.patroni_processes import kill, kill_all, processes
from tests.support import wait_until

POSTGRES = Path("/usr/lib/postgresql/15/bin")
PATRONI = "/usr/bin/patroni"
CONTROLLER = "/usr/bin/patroni_raft_controller"
CONTROL = "/usr/bin/patronictl"
SCOPE = "sqlane"
PORTS = range(20000, 32000)
PATIENCE = 120.0
"""Seconds to wait for a state of the cluster."""

# A leader that does not renew its lock for `ttl` seconds loses it. Strict: without a standby no COMMIT returns.
AGREED: dict[str, Any] = {
    "ttl": 15,
    "loop_wait": 1,
    "retry_timeout": 5,
    "synchronous_mode": True,
    "synchronous_mode_strict": True,
    "postgresql": {
        "use_pg_rewind": True,
        "parameters": {"max_connections": 200, "max_wal_size": "256MB", "fsync": "off"},
    },
}


class Member:
    """A process with a vote in who leads, in a folder of its own; `Member` itself has no server, and only votes."""

    def __init__(self, name: str, votes: dict[str, str], account: Account | None) -> None:
        self.name = name
        self.folder = Folder(account, memory_folder())
        self._account = account
        self._process: Process | None = None
        self._votes = votes
        self._settings = self.folder.path / "settings.yml"

    def start(self) -> None:
        """Start, on the data of the last run if there was one; a running one stays as it is."""
        if self._process is not None and self._process.running:
            return
        # JSON is YAML too.
        self._settings.write_text(json.dumps(self.settings()))
        self._settings.chmod(0o644)
        self._process = Process([self.program(), str(self._settings)], self._account, self.folder)

    def program(self) -> str:
        return CONTROLLER

    def settings(self) -> dict[str, Any]:
        others = [vote for name, vote in self._votes.items() if name != self.name]
        raft = {"self_addr": self._votes[self.name], "partner_addrs": others, "data_dir": str(self.folder.data)}
        return {"scope": SCOPE, "name": self.name, "raft": raft}

    def check_alive(self) -> None:
        assert self._process is not None and self._process.running, self.said()

    def said(self) -> str:
        return f"{self.name} said:\n{self.folder.log_tail(40)}"

    def close(self) -> None:
        """Kill it with all that it started, and remove its files."""
        if self._process is not None:
            self._process.kill()
        try:
            wait_until(lambda: kill_all(self.folder.path), PATIENCE, f"the end of the processes of {self.name}")
        finally:
            self.folder.remove()


class Node(Member):
    """Patroni and its server, at two ports."""

    def __init__(self, name: str, votes: dict[str, str], account: Account | None, ports: list[int]) -> None:
        super().__init__(name, votes, account)
        self.port, self._api_port = ports
        self._data = self.folder.data / "server"

    def url(self, database: str = "postgres", *, tcp: bool = False) -> str:
        at = URL.create("postgresql+psycopg", USER, host="127.0.0.1", port=self.port, database=database)
        return at.render_as_string()

    def program(self) -> str:
        return PATRONI

    def settings(self) -> dict[str, Any]:
        sql, api = f"127.0.0.1:{self.port}", f"127.0.0.1:{self._api_port}"
        anybody = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        return super().settings() | {
            "restapi": {"listen": api, "connect_address": api},
            "bootstrap": {"dcs": AGREED, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"]},
            "postgresql": {
                "listen": sql,
                "connect_address": sql,
                "data_dir": str(self._data),
                "bin_dir": str(POSTGRES),
                "pgpass": str(self.folder.data / "pgpass"),
                "authentication": {"superuser": {"username": USER}, "replication": {"username": USER}},
                "parameters": {"unix_socket_directories": str(self.folder.sockets)},
                "pg_hba": anybody,
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
                # A leader that was killed may have what its standby has not.
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
            "watchdog": {"mode": "off"},
        }

    def kill(self) -> None:
        """kill -9 of Patroni and of its server, and wait until nothing of them is left."""
        postmaster = int((self._data / "postmaster.pid").read_text().split("\n")[0])
        assert self._process is not None and postmaster in processes(self.folder.path)
        self._process.kill()
        kill(postmaster)
        wait_until(lambda: not processes(self.folder.path), PATIENCE, f"the end of the sessions of {self.name}")

    def leads(self) -> bool:
        """Whether it holds the leader's lock, and its server takes writes."""
        return self._ask("/primary") is not None

    def roles(self) -> dict[str, str]:
        """Of the nodes, as it sees them: "leader", "sync_standby", "replica"; none while it does not answer."""
        answer = self._ask("/cluster") or {}
        return {member["name"]: member["role"] for member in answer.get("members", [])}

    def _ask(self, path: str) -> dict[str, Any] | None:
        api = http.client.HTTPConnection("127.0.0.1", self._api_port, timeout=10)
        try:
            api.request("GET", path)
            answer = api.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            api.close()

    def hand_over(self, to: Node) -> None:
        """A clean switchover. Raises AssertionError when Patroni refuses it."""
        options = ["--leader", self.name, "--candidate", to.name, "--force"]
        command = [CONTROL, "--config-file", str(self._settings), "switchover", *options, SCOPE]
        control = Process(command, self._account, self.folder)
        try:
            assert control.wait(PATIENCE), self.said()
        finally:
            control.kill()
        assert control.returncode == 0, self.said()


def free_ports(n: int) -> list[int]:
    """All different, and none that the kernel gives to clients: a killed node has to get its own again."""
    candidates = random.Random().sample(PORTS, len(PORTS))
    return list(islice(filter(is_free, candidates), n))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
