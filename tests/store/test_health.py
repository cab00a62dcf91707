"""`store.health`: who holds the oldest snapshot, and what the statistics say, without a look at the tables."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations, store
from sqlane_sa.demo.server import Server
from sqlane_sa.statement import table_name
from sqlane_sa.values.health import Health, Snapshot, TableHealth
from tests.conftest import memory_folder
from tests.store.steps import add
from tests.support import wait_until

TABLES = ["sqlane_jobs", "sqlane_payloads", "sqlane_mutexes", "sqlane_waits", "sqlane_sleepers"]
SCANS = sa.text(
    "SELECT coalesce(sum(coalesce(seq_scan, 0) + coalesce(idx_scan, 0)), 0) FROM pg_stat_xact_all_tables"
    " WHERE relname LIKE 'sqlane%'"
)


def look(engine: sa.Engine, queue: Queue) -> Health:
    with engine.connect() as conn:
        return store.health(conn, queue.tables)


def snapshot(engine: sa.Engine, queue: Queue) -> Snapshot:
    found = look(engine, queue).snapshot
    assert found is not None
    return found


@contextmanager
def session(engine: sa.Engine, level: str = "REPEATABLE READ", name: str = "reader") -> Iterator[sa.Connection]:
    """A session of that application_name in a transaction."""
    own = sa.create_engine(engine.url.update_query_dict({"application_name": name}), poolclass=sa.NullPool)
    with own.connect().execution_options(isolation_level=level) as conn:
        conn.execute(sa.text("SELECT 1"))
        yield conn


def test_every_driver(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, "n")
    found = store.health(any_conn, queue.tables)
    assert [table.name for table in found.tables] == TABLES
    assert all(table.bytes > 0 and table.index_bytes > 0 for table in found.tables)
    assert found.invalid_indexes == ()
    assert 0 <= found.notify_queue < 1
    assert found.autovacuum is True
    assert found.sees_others is True
    assert [table.name for table in queue.health(any_conn).tables] == TABLES


def test_nobody_holds_a_snapshot(engine: sa.Engine, queue: Queue) -> None:
    """This very transaction has one, and does not count."""
    with engine.begin() as conn:
        conn.execute(sa.text("SELECT pg_current_xact_id()"))
        assert store.health(conn, queue.tables).snapshot is None


def test_a_held_snapshot(engine: sa.Engine, queue: Queue) -> None:
    with session(engine) as reader:
        pid = reader.scalar(sa.text("SELECT pg_backend_pid()"))
        for _ in range(3):
            with engine.begin() as conn:
                conn.execute(sa.text("SELECT pg_current_xact_id()"))
        with session(engine, name="younger"):
            found = snapshot(engine, queue)
        assert found[:6] == ("session", None, pid, engine.url.username, "reader", "idle in transaction")
        assert found.transactions >= 3, "those of all databases of the server count, and tests may share it"
        assert found.age_ms is not None
        assert wait_until(lambda: snapshot(engine, queue).age_ms) > 0
    assert wait_until(lambda: look(engine, queue).snapshot is None)


def test_the_id_of_a_transaction_is_enough(engine: sa.Engine, queue: Queue) -> None:
    """At READ COMMITTED the session holds no snapshot between its statements; but its writes are not decided."""
    with session(engine, "READ COMMITTED", "writer") as writer:
        writer.execute(sa.text("CREATE TABLE written ()"))
        found = snapshot(engine, queue)
        assert found.application_name == "writer"
        assert found.transactions >= 1


def test_sessions_of_other_databases_hold_nothing_here(engine: sa.Engine, admin: sa.Engine, queue: Queue) -> None:
    with session(admin, name="elsewhere") as other:
        other.execute(sa.text("SELECT pg_current_xact_id()"))
        assert look(engine, queue).snapshot is None


def test_a_role_without_rights_says_what_it_cannot_see(engine: sa.Engine, queue: Queue) -> None:
    """Who and how far back, but neither state nor time; and none of the tables is read."""
    role = f"role_{uuid4().hex}"
    with engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE ROLE {role}")
    try:
        with session(engine) as reader, engine.connect() as conn:
            pid = reader.scalar(sa.text("SELECT pg_backend_pid()"))
            conn.exec_driver_sql(f"SET ROLE {role}")
            found = store.health(conn, queue.tables)
            conn.rollback()
            conn.exec_driver_sql("RESET ROLE")
        assert found.sees_others is False
        assert found.snapshot is not None
        assert found.snapshot[:7] == ("session", None, pid, engine.url.username, "reader", None, None)
        assert [table.name for table in found.tables] == TABLES
    finally:
        with engine.begin() as conn:
            conn.exec_driver_sql(f"DROP ROLE {role}")


def test_the_tables_are_not_read(engine: sa.Engine, queue: Queue) -> None:
    with engine.connect() as conn:
        store.health(conn, queue.tables)
        assert conn.scalar(SCANS) == 0
        store.stats(conn, queue.tables)
        assert conn.scalar(SCANS) > 0


def test_a_queue_that_is_not_there(engine: sa.Engine) -> None:
    for queue in (Queue("other_"), Queue(schema="nowhere")):
        found = look(engine, queue)
        assert (found.tables, found.invalid_indexes) == ((), ())


def test_dead_rows_hot_updates_and_vacuums(engine: sa.Engine) -> None:
    """In a schema and under a prefix that need quotes, beside a queue of the default names."""
    queue = Queue('a "b" %', "C d:e")
    migrations.apply(engine, queue)
    once = sa.create_engine(engine.url, poolclass=sa.NullPool)  # statistics are sent when a session ends, at the latest
    with once.begin() as conn:
        queue.define("n")
        queue.enqueue_many(conn, [queue.new("n")] * 100)
        jobs = queue.tables.jobs
        conn.execute(sa.update(jobs).values(max_stalls=7))
        conn.execute(sa.update(jobs).values(priority=1))
    jobs_health = wait_until(lambda: found if (found := _jobs(engine, queue)).updates else None)
    assert isinstance(jobs_health, TableHealth)
    assert (jobs_health.name, jobs_health.live_rows, jobs_health.dead_rows) == (jobs.name, 100, 200)
    assert jobs_health.updates == 200
    assert jobs_health.hot_share == jobs_health.hot_updates / 200
    assert 0 < jobs_health.hot_updates <= 100
    assert jobs_health.vacuum_age_ms is None
    with once.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(sa.text(f"VACUUM (ANALYZE) {table_name(jobs).replace(':', chr(92) + ':')}"))
    after = wait_until(lambda: found if (found := _jobs(engine, queue)).vacuum_age_ms is not None else None)
    assert isinstance(after, TableHealth)
    assert (after.live_rows, after.dead_rows) == (100, 0)
    assert after.vacuum_age_ms is not None
    assert after.analyze_age_ms is not None
    assert after.vacuum_age_ms >= after.analyze_age_ms >= 0
    assert _jobs(engine, Queue()).updates == 0
    assert _jobs(engine, Queue()).hot_share is None


def _jobs(engine: sa.Engine, queue: Queue) -> TableHealth:
    return look(engine, queue).tables[0]


def test_an_invalid_index(engine: sa.Engine, queue: Queue) -> None:
    """As a real one comes about: a build beside running transactions that did not finish."""
    migrations.apply(engine, Queue(schema="other"))
    with engine.begin() as conn:
        queue.define("n")
        queue.enqueue_many(conn, [queue.new("n")] * 2)
        conn.exec_driver_sql("CREATE TABLE users_own (n int)")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("INSERT INTO users_own VALUES (1), (1)")
        for name, on in (("sqlane_jobs_again", "sqlane_jobs (job_name)"), ("not_ours", "users_own (n)")):
            with pytest.raises(sa.exc.IntegrityError):
                conn.exec_driver_sql(f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON {on}")
    assert look(engine, queue).invalid_indexes == ("sqlane_jobs_again",)
    assert look(engine, Queue(schema="other")).invalid_indexes == ()


def test_the_queue_of_notifications(engine: sa.Engine, queue: Queue) -> None:
    """Held up by a session that listens and stays in a transaction."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as listener:
        listener.exec_driver_sql("LISTEN busy")
        listener.exec_driver_sql("BEGIN")
        with engine.begin() as conn:
            for n in range(5):
                conn.execute(sa.text("SELECT pg_notify('busy', :rubbish)"), {"rubbish": f"{n}" * 7000})
        assert look(engine, queue).notify_queue > 0
        listener.exec_driver_sql("ROLLBACK")
        listener.invalidate()


@pytest.fixture(scope="module")
def standalone() -> Iterator[sa.Engine]:
    """A server of its own, for transactions that are prepared and for what the whole server has."""
    settings = {"max_prepared_transactions": 2, "max_connections": 20}
    with Server(fsync=False, tcp=True, settings=settings, parent=memory_folder()) as server:
        engine = sa.create_engine(server.url(tcp=True), poolclass=sa.NullPool)
        migrations.apply(engine, Queue())
        yield engine


def test_a_prepared_transaction(standalone: sa.Engine, queue: Queue) -> None:
    with standalone.connect() as conn:
        conn.exec_driver_sql("CREATE TABLE prepared ()")
        conn.exec_driver_sql("PREPARE TRANSACTION 'left over'")
        conn.rollback()
    found = snapshot(standalone, queue)
    assert found[:3] == ("prepared transaction", "left over", None)
    assert (found.user, found.transactions) == ("postgres", 1)
    assert found.age_ms is not None
    with standalone.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("ROLLBACK PREPARED 'left over'")
    assert look(standalone, queue).snapshot is None


class Standby:
    """What the primary sees of a standby with a long query: a replication connection with feedback."""

    def __init__(self, engine: sa.Engine, slot: str | None) -> None:
        with engine.connect() as conn:
            lsn, xmin = conn.execute(
                sa.text("SELECT pg_current_wal_flush_lsn(), CAST(CAST(pg_current_xact_id() AS text) AS bigint)")
            ).one()
        self._socket = socket.create_connection((engine.url.host, engine.url.port), timeout=20)
        options = b"user\0postgres\0replication\0true\0application_name\0far away\0\0"
        self._socket.sendall(struct.pack("!ii", len(options) + 8, 196608) + options)
        self._await(b"Z")
        self._send(b"Q", f"START_REPLICATION {f'SLOT {slot} ' if slot else ''}PHYSICAL {lsn}\0".encode())
        self._await(b"W")
        self._send(b"d", b"h" + struct.pack("!qIIII", 0, xmin, 0, 0, 0))

    def _send(self, kind: bytes, body: bytes) -> None:
        self._socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def _await(self, kind: bytes) -> None:
        got = b""
        while got != kind:
            got, length = struct.unpack("!ci", self._exactly(5))
            assert got != b"E", self._exactly(length - 4)
            self._exactly(length - 4)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._socket.recv(count - len(data))
        return data

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("slot", [None, "its_slot"])
def test_a_standby_with_feedback(standalone: sa.Engine, queue: Queue, slot: str | None) -> None:
    """Its snapshot is its connection's, or its slot's; and a slot keeps it when the standby is gone."""
    with standalone.begin() as conn:
        if slot:
            conn.execute(sa.text("SELECT pg_create_physical_replication_slot(:slot, true)"), {"slot": slot})
    standby = Standby(standalone, slot)
    try:
        found = wait_until(lambda: look(standalone, queue).snapshot)
        assert found is not None
        assert (found.kind, found.name) == (("replication slot", slot) if slot else ("standby", None))
        assert found.pid is not None
        assert (found.user, found.application_name) == ("postgres", "far away")
        assert found.transactions >= 1
    finally:
        standby.close()
    if slot:
        left = wait_until(lambda: found if (found := snapshot(standalone, queue)).pid is None else None)
        assert isinstance(left, Snapshot)
        assert left[:6] == ("replication slot", slot, None, None, None, None)
        with standalone.begin() as conn:
            conn.execute(sa.text("SELECT pg_drop_replication_slot(:slot)"), {"slot": slot})
    wait_until(lambda: look(standalone, queue).snapshot is None)
