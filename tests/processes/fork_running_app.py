"""A process that forks while its worker runs: `python fork_running_app.py URL`.

The child stops the worker that it has inherited, as an `atexit` of its parent's would, and then runs it itself. Its
exit code is the process's own.
"""

from __future__ import annotations

import os
import sys

import sqlalchemy as sa

from sqlane_sa import Queue, Worker

queue = Queue()


@queue.job("n")
def n(payload: str) -> None: ...


def enqueue(engine: sa.Engine, by: str) -> None:
    with engine.begin() as conn:
        queue.enqueue(conn, "n", by)


def main(url: str) -> int:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    worker = Worker(engine, queue, poll_interval=0.05, shutdown_timeout=3600).start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            worker.stop()
            enqueue(engine, "child")
            worker.run_until_idle()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    worker.stop()
    enqueue(engine, "parent")
    worker.run_until_idle()
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
