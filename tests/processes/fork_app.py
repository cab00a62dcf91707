"""A process that forks after it has used its engine: `python fork_app.py URL HOW`, with "dispose" or "worker".

The child's exit code is the process's own; what both enqueued is in the database.
"""

from __future__ import annotations

import os
import sys

import sqlalchemy as sa

from sqlane_sa import JobContext, Queue, Worker

queue = Queue()
PIDS = "SELECT pid, query_start FROM pg_stat_activity WHERE pid = ANY(:pids) ORDER BY pid"


@queue.job("n")
def n(payload: int) -> None: ...


@queue.job("both", transactional=True)
def both(payload: int, ctx: JobContext) -> None:
    ctx.connection.execute(sa.text("SELECT 1"))
    ctx.enqueue("n", payload)


def enqueue(engine: sa.Engine, name: str, *payloads: int) -> None:
    for payload in payloads:
        with engine.begin() as conn:
            queue.enqueue(conn, name, payload)


def in_child(engine: sa.Engine, how: str) -> None:
    if how == "dispose":
        engine.dispose(close=False)
        enqueue(engine, "n", *range(1000, 1100))
    Worker(engine, queue, lease=60, poll_interval=0.05).run_until_idle()


def main(url: str, how: str) -> int:
    engine = sa.create_engine(url, pool_size=3)
    with engine.connect() as one, engine.connect() as two, engine.connect() as three:
        conns = (one, two, three)
        pids = [conn.scalar(sa.text("SELECT pg_backend_pid()")) for conn in conns]
        for conn in conns:
            conn.rollback()
            conn.execute(sa.text("SELECT 'of the parent'"))
            conn.rollback()
    enqueue(engine, "both", 1)
    watcher = sa.create_engine(url, poolclass=sa.NullPool)

    def sessions() -> list[tuple[int, object]]:
        with watcher.connect() as conn:
            return [tuple(row) for row in conn.execute(sa.text(PIDS), {"pids": pids})]

    before = sessions()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            in_child(engine, how)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    if how == "dispose":
        enqueue(engine, "n", *range(100))
    _, status = os.waitpid(child, 0)
    if how == "worker":
        assert sessions() == before, "the child's worker used the parent's connections"
        enqueue(engine, "n", *range(100))
    assert {pid for pid, _ in sessions()} == set(pids), "the parent's connections are its own still"
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
