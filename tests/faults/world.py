"""What a chaos run has: a server, a proxy before it, worker and producer processes, and one folder for what is kept."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from sqlane_sa import migrations
from sqlane_sa.demo.server import Server
from tests.conftest import memory_folder
from tests.faults import ledger, seeded
from tests.faults.history import History
from tests.faults.proxy import Proxy
from tests.faults.workload import queue

DATABASE = "chaos"
ROLE = "chaos_app"
SETTINGS = {"max_connections": 200, "track_commit_timestamp": True, "max_wal_size": "512MB"}
END_TIMEOUT = 40.0
OPTIONS = {
    "lease": 4.0,
    "sweep_interval": 1.0,
    "stall_delay": 0.5,
    "poll_interval": 0.5,
    "shutdown_timeout": 3.0,
    "concurrency": 24,
}
"""Of each worker; seconds."""


class Plan(NamedTuple):
    """What the command line says."""

    seconds: float
    seed: int
    jobs: int
    workers: int
    bug: str | None = None
    only: tuple[str, ...] = ()
    """The kinds of faults, unless all."""


class Process:
    """A worker or a producer, which writes into a log of its own."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name = name
        self.started_at = time.monotonic()
        self.expected = False
        """Whether somebody ended it on purpose."""
        self.stopped = False
        with (folder / f"{name}.log").open("w") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.expected = True
        self.stopped = number == signal.SIGSTOP
        self.popen.send_signal(number)

    def end(self) -> None:
        if self.running:
            self.popen.kill()
        self.popen.wait()


class Crew:
    """Processes of one kind: one that ends, whyever, is followed by another with a name of its own."""

    def __init__(self, kind: str, size: int, history: History, folder: Path) -> None:
        self._kind = kind
        self._size = size
        self._history = history
        self._folder = folder
        self._count = 0
        self.processes: list[Process] = []
        self.broken: list[str] = []
        """Names of those that ended without having been told to."""
        self.open = True

    def arguments(self, name: str) -> list[str]:
        raise NotImplementedError

    def tend(self) -> None:
        """Note who has ended, and start the next."""
        for process in [one for one in self.processes if not one.running]:
            self.processes.remove(process)
            code = process.popen.returncode
            self._history.note("end", process=process.name, code=code, expected=process.expected)
            if not process.expected:
                self.broken.append(process.name)
        while self.open and len(self.processes) < self._size:
            self._count += 1
            name = f"{self._kind}-{self._count}"
            self.processes.append(Process(name, self.arguments(name), self._folder))
            self._history.note("start", process=name, pid=self.processes[-1].popen.pid)

    @property
    def ready(self) -> list[Process]:
        """Those to which nothing was done yet."""
        return [one for one in self.processes if not one.expected and not one.stopped]

    def pick(self, chance: random.Random) -> Process:
        """One that is past its start, or else any."""
        grown = [one for one in self.ready if time.monotonic() - one.started_at > 2]
        return chance.choice(grown or self.ready or self.processes)

    def stop(self) -> list[str]:
        """SIGTERM to all, as a deployment would; the names of those that did not end in time or not with 0."""
        self.open = False
        for process in self.processes:
            process.send(signal.SIGTERM)
        bad = []
        deadline = time.monotonic() + END_TIMEOUT
        for process in self.processes:
            try:
                code = process.popen.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                bad.append(process.name)
        self.close()
        return bad

    def close(self) -> None:
        self.open = False
        for process in self.processes:
            process.end()


class Workers(Crew):
    def __init__(self, plan: Plan, urls: tuple[str, str], history: History, folder: Path) -> None:
        super().__init__("worker", plan.workers, history, folder)
        self._urls = urls
        self._bug = plan.bug

    def arguments(self, name: str) -> list[str]:
        bug = [self._bug] if self._bug else []
        return ["tests.faults.workload", *self._urls, name, json.dumps(OPTIONS), *bug]


class Producers(Crew):
    def __init__(self, plan: Plan, url: str, history: History, folder: Path) -> None:
        super().__init__("producer", 1, history, folder)
        self._plan = plan
        self._url = url

    def arguments(self, name: str) -> list[str]:
        seed, rate = str(self._plan.seed * 1000 + self._count), str(self._plan.jobs / self._plan.seconds)
        return ["tests.faults.producers", self._url, str(self._folder), name, seed, rate]


class World:
    """Everything that a fault may touch."""

    def __init__(self, plan: Plan, folder: Path, server: Server, proxy: Proxy, history: History) -> None:
        self.plan = plan
        self.folder = folder
        self.server = server
        self.proxy = proxy
        self.history = history
        through, direct = as_role(proxy.url), as_role(server.url(DATABASE, tcp=True))
        self.workers = Workers(plan, (through, direct), history, folder)
        self.producers = Producers(plan, through, history, folder)
        self.admin = admin_engine(server)
        self.pauses: set[str] = set()

    def pause(self, why: str) -> None:
        """Let the producers wait until nobody has a reason any more."""
        self.pauses.add(why)
        (self.folder / "pause").touch()

    def resume(self, why: str) -> None:
        self.pauses.discard(why)
        if not self.pauses:
            (self.folder / "pause").unlink(missing_ok=True)

    def scalar(self, sql: str, **parameters: Any) -> Any:
        with self.admin.connect() as conn:
            return conn.execute(sa.text(sql), parameters).scalar()

    def execute(self, sql: str, **parameters: Any) -> None:
        with self.admin.connect() as conn:
            conn.execute(sa.text(sql), parameters)

    def column(self, sql: str) -> list[Any]:
        with self.admin.connect() as conn:
            return list(conn.exec_driver_sql(sql).scalars())

    def tend(self) -> None:
        self.workers.tend()
        self.producers.tend()

    def close(self) -> None:
        self.producers.close()
        self.workers.close()
        self.admin.dispose()


def as_role(url: str) -> str:
    """No superuser, to whom the limits of connections would not apply."""
    return sa.make_url(url).set(username=ROLE).render_as_string(hide_password=False)


def admin_engine(server: Server) -> sa.Engine:
    """Past the proxy and all limits, in autocommit; it may write where others may not, and waits 3 s for a lock."""
    options = "-c default_transaction_read_only=off -c lock_timeout=3s -c application_name=chaos"
    url = server.url(DATABASE, tcp=True)
    return sa.create_engine(
        url, isolation_level="AUTOCOMMIT", connect_args={"options": options, "connect_timeout": 5}, pool_pre_ping=True
    )


def make_database(server: Server, bug: str | None = None) -> None:
    """The migrated database with its ledger, and the bug where it is one of the tables; the role owns it all."""
    admin = sa.create_engine(server.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE ROLE {ROLE} LOGIN")
        conn.exec_driver_sql(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
    owner = sa.create_engine(as_role(server.url(DATABASE, tcp=True)), poolclass=sa.NullPool)
    migrations.apply(owner, queue)
    with owner.begin() as conn:
        ledger.create(conn, queue)
        seeded.alter(bug, conn)


@contextmanager
def new_world(plan: Plan, folder: Path, history: History) -> Iterator[World]:
    with ExitStack() as stack:
        server = stack.enter_context(Server(fsync=False, tcp=True, settings=SETTINGS, parent=_place(plan)))
        make_database(server, plan.bug)
        proxy = stack.enter_context(Proxy(server.url(DATABASE, tcp=True)))
        world = World(plan, folder, server, proxy, history)
        stack.callback(world.close)
        yield world


def _place(plan: Plan) -> Path | None:
    """In memory, unless it would be gigabytes."""
    return memory_folder() if plan.jobs < 200_000 and os.name == "posix" else None
