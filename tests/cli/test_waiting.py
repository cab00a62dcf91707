"""`sqlane worker` whose database is not there yet."""

from __future__ import annotations

import signal
from collections.abc import Callable

import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.demo.server import Server
from tests.cli.conftest import Start, ended


def test_a_worker_waits_for_its_database(
    start: Start, app: Callable[..., None], noted: Callable[[int], list[str]]
) -> None:
    """B32: as after a reboot of the machine, in which the worker came first."""
    app()
    queue = Queue()
    queue.define("note")
    with Server(fsync=False, tcp=True) as server:
        engine = sa.create_engine(server.url(tcp=True), poolclass=sa.NullPool)
        migrations.apply(engine, queue)
        server.stop()
        worker = start("worker", "app:queue", "--url", server.url(tcp=True))
        assert worker.stderr is not None
        first = worker.stderr.readline()
        assert "database: OperationalError" in first and "trying again until it works" in first
        server.start()
        with engine.begin() as conn:
            queue.enqueue(conn, "note", "at last")
        assert noted(1) == ["at last"]
        answer = ended(worker, signal.SIGTERM)
    assert answer.code == 0
    assert "database: works again after" in answer.err
