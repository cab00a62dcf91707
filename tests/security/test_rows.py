"""What is read from the database is data: no name in it is imported, no error in it raised, nothing in it run."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import PayloadError, Queue, Worker
from sqlane_sa.schema import MAX_PAYLOAD_BYTES
from sqlane_sa.testing import drain
from tests.support import wait_until

# A module whose import would show: it prints, and stays in sys.modules.
EVIL = "this"
ERROR = {"type": f"{EVIL}.Error", "message": "m", "traceback": "t", "py/object": "builtins.SystemExit"}
PAYLOADS = [
    {"py/object": f"{EVIL}.Anything", "py/reduce": [{"py/type": "os.system"}, {"py/tuple": ["false"]}]},
    {"__class__": "os.system", "__reduce__": ["os.system", "false"], "$type": EVIL, "!!python/object": EVIL},
    "cos\nsystem\n(S'false'\ntR.",
    "!!python/object/apply:os.system ['false']",
    "__import__('os').system('false')",
]


def test_payloads_stay_what_they_are(conn: sa.Connection, queue: Queue) -> None:
    seen: list[Any] = []
    queue.job("n")(seen.append)
    for payload in PAYLOADS:
        queue.enqueue(conn, "n", payload)
    assert drain(conn, queue, raise_errors=True).completed == len(PAYLOADS)
    assert seen == PAYLOADS
    assert EVIL not in sys.modules


def test_stored_errors_are_never_raised_again(engine: sa.Engine, queue: Queue) -> None:
    """Neither by a look at the job, nor by a worker that recovers it with its failure job."""
    seen: list[Any] = []
    queue.job("n", failure_job="after", max_stalls=0)(print)
    queue.job("after")(seen.append)
    with engine.begin() as conn:
        id_ = queue.enqueue(conn, "n").id
        conn.execute(
            sa.text(
                "UPDATE sqlane_jobs SET status = 'running', lock_token = 'os.system', locked_by = :evil,"
                " locked_until = statement_timestamp() - interval '1 s', last_error = CAST(:error AS jsonb)"
            ),
            {"error": json.dumps(ERROR), "evil": EVIL},
        )
        job = queue.get(conn, id_)
    assert job is not None
    assert job.last_error == ERROR
    with Worker(engine, queue, sweep_interval=0.1, poll_interval=0.1):
        wait_until(lambda: seen)
    assert seen[0]["error"]["type"] == "sqlane_sa.StalledError"
    assert EVIL not in sys.modules


def test_names_in_rows_call_nothing(conn: sa.Connection, queue: Queue) -> None:
    """A name is looked up among the definitions, and never among modules."""
    queue.job("n")(print)
    for name in (f"{EVIL}.s", "os.system", "builtins.exit", "__init__", "n.__class__"):
        conn.execute(sa.insert(queue.tables.jobs).values(id=name, job_name=name, failure_job=name))
        conn.execute(sa.insert(queue.tables.payloads).values(id=name, payload=sa.literal({}, sa.JSON)))
    assert drain(conn, queue)[:4] == (0, 0, 0, 0)
    assert EVIL not in sys.modules


def test_the_cap_of_a_payload_holds_at_both_doors(conn: sa.Connection, queue: Queue) -> None:
    """Python refuses before any SQL; who writes SQL is refused by the table, also by an UPDATE."""
    handle = queue.define("n")
    whole = "x" * (MAX_PAYLOAD_BYTES - 2)
    id_ = handle.enqueue(conn, whole).id
    with pytest.raises(PayloadError):
        handle.enqueue(conn, whole + "x")
    payloads = queue.tables.payloads
    too_large = sa.cast(sa.func.to_json(sa.func.repeat("x", MAX_PAYLOAD_BYTES - 1)), sa.JSON)
    for statement in (
        sa.insert(payloads).from_select(["id", "payload"], sa.select(sa.literal("other"), too_large)),
        sa.update(payloads).where(payloads.c.id == id_).values(payload=too_large),
    ):
        with pytest.raises(sa.exc.IntegrityError, match="sqlane_payloads_size"), conn.begin_nested():
            conn.execute(statement)
