"""What a first user does with the installed package: migrate, enqueue, work."""

from pathlib import Path

import sqlalchemy as sa

import sqlane_sa
from sqlane_sa import Queue, Worker, migrations
from sqlane_sa.demo.server import Server

queue = Queue()
greeted: list[str] = []


@queue.job("greet")
def greet(payload: dict[str, str]) -> None:
    greeted.append(payload["name"])


with Server(fsync=False) as server:
    engine = sa.create_engine(server.url())
    migrations.apply(engine, queue)
    with engine.begin() as conn:
        job = greet.enqueue(conn, {"name": "Ada"})
    Worker(engine, queue).run_until_idle()
    with engine.connect() as conn:
        stored = queue.get(conn, job.id)
    engine.dispose()

assert greeted == ["Ada"], greeted
assert stored is not None and stored.status == "completed", stored
print(f"one job done by sqlane_sa in {Path(sqlane_sa.__file__).parent}, on {server.binaries}")
