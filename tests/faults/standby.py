"""A second server that follows the first, and takes its place when it is promoted."""

from __future__ import annotations

from typing import Any, Protocol

import sqlalchemy as sa

from sqlane_sa.demo.process import Process
from sqlane_sa.demo.server import USER, Server
from tests.support import wait_until

FOLLOWERS = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
NAMES = "ALTER SYSTEM SET synchronous_standby_names = '{names}'"


class Reachable(Protocol):
    """A server, whoever runs it."""

    port: int

    def url(self, database: str = "postgres", *, tcp: bool = False) -> str: ...


class Standby(Server):
    """A copy of a running server's cluster that streams from it; the same settings as for any server."""

    def __init__(self, primary: Server, **options: Any) -> None:
        super().__init__(tcp=True, **options)
        self._primary = primary

    def promote(self) -> None:
        """It takes writes from now on. The old primary must be stopped, or there are two."""
        execute(self, "SELECT pg_promote(true, 60)")

    def _run(self, program: str, arguments: list[str]) -> Process:
        """A copy of the primary's cluster in place of an empty one."""
        if program == "initdb":
            primary = ["--host=127.0.0.1", f"--port={self._primary.port}", f"--username={USER}", "--no-password"]
            options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", *primary]
            return super()._run("pg_basebackup", [arguments[0], *options])
        return super()._run(program, arguments)


def follow(primary: Server, names: str = "*") -> None:
    """Wait until a standby streams, and let every COMMIT wait for it from then on ("": for none)."""
    wait_until(lambda: scalar(primary, FOLLOWERS), 60, "a standby that streams")
    execute(primary, NAMES.format(names=names))
    execute(primary, "SELECT pg_reload_conf()")
    state = "sync" if names else "async"
    wait_until(lambda: scalar(primary, f"SELECT count(*) FROM pg_stat_replication WHERE sync_state = '{state}'"), 60)


def catch_up(primary: Server) -> None:
    """Wait until the standby has all that is in the primary's log by now, flushed there or not."""
    here = scalar(primary, "SELECT pg_current_wal_insert_lsn()")
    wait_until(lambda: scalar(primary, f"SELECT bool_or(replay_lsn >= '{here}') FROM pg_stat_replication"), 60)


def execute(server: Reachable, sql: str) -> None:
    scalar(server, sql)


def scalar(server: Reachable, sql: str) -> object:
    engine = sa.create_engine(server.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as conn:
        result = conn.exec_driver_sql(sql)
        return result.scalar() if result.returns_rows else None


def either(first: Reachable, second: Reachable, database: str) -> str:
    """The URL of the database on whichever of them takes writes."""
    hosts = [("host", f"127.0.0.1:{server.port}") for server in (first, second)]
    url = sa.make_url(first.url(database, tcp=True)).set(host=None, port=None)
    for name, value in [*hosts, ("target_session_attrs", "read-write")]:
        url = url.update_query_pairs([(name, value)], append=True)
    return url.render_as_string(hide_password=False)
