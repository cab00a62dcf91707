"""Where it is measured: a server, databases on it, and what they have used so far."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa

from sqlane_sa.demo.server import Server, find_binaries

TICK = os.sysconf("SC_CLK_TCK")
SETTINGS: dict[str, str | int] = {"shared_buffers": "512MB", "max_connections": 400, "max_wal_size": "4GB"}
STATEMENTS = "pg_stat_statements"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
CALLS = f"""
SELECT coalesce(sum(calls), 0) FROM {STATEMENTS} AS s JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = %s"""
SHOWN = ("shared_buffers", "max_connections", "max_wal_size", "fsync", "synchronous_commit", "full_page_writes")


class Usage(NamedTuple):
    """So far: transactions and statements of a database, and of the whole server bytes of WAL and CPU seconds. None
    where the server does not say: statements without pg_stat_statements, its CPU from another machine."""

    transactions: int
    statements: int | None
    wal: int
    cpu: float | None


class Ground:
    """A server by a libpq URL without a database, whose user may create databases and needs no password."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.admin = psycopg.connect(self.dsn("postgres"), autocommit=True)
        self.pid = self._pid()
        self._counts = STATEMENTS in self.ask("SHOW shared_preload_libraries")
        if self._counts:
            self.admin.execute(f"CREATE EXTENSION IF NOT EXISTS {STATEMENTS}")

    def close(self) -> None:
        self.admin.close()

    def dsn(self, database: str) -> str:
        return f"{self.url}/{database}"

    def ask(self, sql: Any, *parameters: Any) -> Any:
        """The one value that a statement returns."""
        row = self.admin.execute(sql, parameters).fetchone()
        return row[0] if row else None

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, which is dropped at the end."""
        name = f"sqlane_bench_{uuid.uuid4().hex[:8]}"
        self.admin.execute(f"CREATE DATABASE {name}")
        try:
            yield self.dsn(name)
        finally:
            self.admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def usage(self, dsn: str, sessions: int = 0) -> Usage:
        """Asks once so many are connected at most: a session reports its counts when it ends."""
        name = dsn.rsplit("/", 1)[1]
        while self.ask(SESSIONS, name) > sessions:
            time.sleep(0.02)
        self.admin.execute("SELECT pg_stat_clear_snapshot()")
        return Usage(
            self.ask("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", name),
            int(self.ask(CALLS, name)) if self._counts else None,
            self.wal(),
            self._cpu(),
        )

    def wal(self) -> int:
        return int(self.ask("SELECT pg_current_wal_insert_lsn() - '0/0'"))

    def settings(self) -> dict[str, str]:
        return {name: self.ask(f"SHOW {name}") for name in SHOWN}

    def _pid(self) -> int | None:
        """Of the postmaster, when it runs here."""
        try:
            parent = int(_fields(self.ask("SELECT pg_backend_pid()"))[1])
            return parent if "postgres" in Path(f"/proc/{parent}/comm").read_text() else None
        except OSError:
            return None

    def _cpu(self) -> float | None:
        """Of the processes that ended and of those that live."""
        if self.pid is None:
            return None
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return cpu_seconds(self.pid, ended_children=True) + sum(map(cpu_seconds, children))


def _fields(pid: int | str) -> list[str]:
    """Of /proc/PID/stat, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_seconds(pid: int | str, *, ended_children: bool = False) -> float:
    """User and system time of a process; 0 when it is gone."""
    try:
        return sum(map(int, _fields(pid)[11 : 15 if ended_children else 13])) / TICK
    except OSError:
        return 0.0


@contextmanager
def ground(url: str | None) -> Iterator[Ground]:
    """The server of the URL, or one of our own: on a disk, with fsync, and with pg_stat_statements if it has it."""
    if url:
        found = Ground(url)
        yield found
        found.close()
        return
    with Server(fsync=True, tcp=True, settings=SETTINGS | _library()) as server:
        found = Ground(f"postgresql://postgres@127.0.0.1:{server.port}")
        yield found
        found.close()


def _library() -> dict[str, str]:
    libraries = find_binaries().bin_dir.parent / "lib"
    return {"shared_preload_libraries": STATEMENTS} if any(libraries.rglob(f"{STATEMENTS}.*")) else {}


@contextmanager
def own_server(url: str | None) -> Iterator[str]:
    """For a SQLAlchemy URL: the given one, or that of a server with its default settings."""
    if url:
        yield url
        return
    with Server() as server:
        yield server.url()


@contextmanager
def own_database(url: str) -> Iterator[sa.Engine]:
    name = f"sqlane_bench_{uuid.uuid4().hex[:8]}"
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE DATABASE {name}")
    engine = sa.create_engine(admin.url.set(database=name))
    try:
        yield engine
    finally:
        engine.dispose()
        with admin.connect() as conn:
            conn.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()
