"""What is loaded by whom: a list of modules, because the time that they take depends on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

RARE = {
    "alembic",
    "asyncpg",
    "click",
    "difflib",
    "mako",
    "pg8000",
    "psycopg",
    "psycopg2",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.orm",
    "ulid",
}
"""Of these, a process loads what it uses."""

ENQUEUE = """
queue = Queue()
queue.define("n")
queue.new("n", {"a": 1})
"""

WORK = """
import logging, sqlalchemy as sa
logging.basicConfig(level=logging.INFO)
engine = sa.create_engine(sys.argv[1])
queue = Queue()
queue.job("n")(lambda payload: None)
with Worker(engine, queue):
    with engine.begin() as conn:
        queue.enqueue(conn, "n", 1)
Worker(engine, queue).run_until_idle()
"""


def loaded(source: str, *arguments: str) -> set[str]:
    program = f"import sys\nfrom sqlane_sa import Queue, Worker\n{source}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    assert "alembic" not in done.stderr, "its plugins would tell of themselves at INFO"
    return set(done.stdout.split())


@pytest.mark.parametrize("source", ["", ENQUEUE])
def test_who_only_makes_jobs(source: str) -> None:
    assert not RARE & loaded(source)


def test_a_worker_at_work(database_url: str) -> None:
    assert RARE & loaded(WORK, database_url) == {"psycopg", "ulid"}
