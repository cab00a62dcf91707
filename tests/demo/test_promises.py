"""Each promise of the demo can be broken, and the SQL that measures it says so."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.demo.promises import PROMISES, verify
from tests.conftest import new_database
from tests.demo.process import command, environment, schemas


@pytest.fixture(scope="module")
def played(server: Any, admin: sa.Engine) -> Iterator[tuple[sa.Engine, str]]:
    """The tables that a demo has left, and their schema."""
    with new_database(admin) as name:
        url = server.url(name, tcp=True)
        done = subprocess.run(
            command("demo", "--orders", "60", "--keep", "--url", url), capture_output=True, text=True, env=environment()
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (schema,) = set(re.findall(r"\bsqlane_demo_[0-9a-f]+", done.stdout))
        assert schemas(url) == [schema]
        assert f"  sqlane stats --schema {schema} \\\n    --url " in done.stdout
        assert done.stdout.endswith(f"  DROP SCHEMA {schema} CASCADE\n")
        engine = sa.create_engine(url)
        yield engine, schema
        engine.dispose()


def verdicts(conn: sa.Connection, schema: str) -> dict[str, bool]:
    return {verdict.promise: verdict.kept for verdict in verify(conn, schema)}


HAS_JOBS, ROLLED_BACK, LOST, OVERLAP, LINE, ONCE, FAILURE, HANGS, SNOOZE = (promise.text for promise in PROMISES)
A_CONFIRMATION = "(SELECT min(id) FROM sqlane_jobs WHERE job_name = 'order.confirm')"
A_REFUSAL = "(SELECT min(id) FROM sqlane_jobs WHERE job_name = 'order.refuse')"
A_PRINTING = """(
    SELECT min(j.id) FROM sqlane_jobs AS j JOIN ledger_placed AS p ON p.job_id = j.id JOIN orders AS o
    ON o.id = p.order_id WHERE (o.mishap, j.job_name) = ('printer hangs', 'order.print_card'))"""
# The first run of a key that has a later one.
A_RUN = """(
    SELECT r.job_id FROM ledger_runs AS r JOIN sqlane_jobs AS j ON j.id = r.job_id
    WHERE r.outcome = 'returned' AND j.attempts = 1
    AND EXISTS (SELECT FROM sqlane_jobs AS later WHERE later.mutex_keys && j.mutex_keys AND later.run_at > j.run_at)
    ORDER BY r.started_at LIMIT 1)"""


def update_job(changes: str, id_: str) -> str:
    return f"UPDATE sqlane_jobs SET {changes} WHERE id = {id_}"


@pytest.mark.parametrize(
    ("promise", "harm"),
    [
        (HAS_JOBS, f"DELETE FROM sqlane_jobs WHERE id = {A_CONFIRMATION}"),
        (HAS_JOBS, "DELETE FROM ledger_placed WHERE order_id = (SELECT min(id) FROM orders)"),
        (
            ROLLED_BACK,
            "INSERT INTO sqlane_jobs (id, job_name, status, finished_at)"
            " SELECT job_id, 'order.confirm', 'completed', now() FROM ledger_placed WHERE NOT committed LIMIT 1",
        ),
        (ROLLED_BACK, "DELETE FROM ledger_placed WHERE NOT committed"),
        (LOST, update_job("status = 'pending', finished_at = NULL, expires_at = NULL", A_CONFIRMATION)),
        (OVERLAP, f"UPDATE ledger_runs SET ended_at = 'infinity' WHERE job_id = {A_RUN}"),
        (OVERLAP, f"UPDATE ledger_runs SET ended_at = NULL WHERE job_id = {A_RUN}"),
        (LINE, f"UPDATE ledger_runs SET (started_at, ended_at) = ('3000-1-1', '3000-1-1') WHERE job_id = {A_RUN}"),
        (ONCE, "DELETE FROM charges WHERE id = (SELECT min(id) FROM charges)"),
        (ONCE, "INSERT INTO charges (order_id, cents) SELECT order_id, cents FROM charges LIMIT 1"),
        (ONCE, "INSERT INTO charges (order_id, cents) SELECT order_id, 0 FROM charges LIMIT 1"),
        (ONCE, "UPDATE charges SET cents = cents + 1 WHERE id = (SELECT min(id) FROM charges)"),
        (ONCE, "UPDATE customers SET spent_cents = spent_cents - 1 WHERE id = 7"),
        (
            FAILURE,
            f"DELETE FROM sqlane_jobs WHERE id = {A_REFUSAL}",
        ),
        (FAILURE, "UPDATE orders SET status = 'placed' WHERE status = 'refused'"),
        (FAILURE, update_job("status = 'failed'", A_CONFIRMATION)),
        (HANGS, update_job("last_error = NULL", A_PRINTING)),
        (HANGS, update_job('last_error = \'{"type": "ValueError"}\'', A_PRINTING)),
        (HANGS, update_job("attempts = 1", A_PRINTING)),
        (HANGS, "UPDATE orders SET mishap = NULL WHERE mishap = 'printer hangs'"),
        (SNOOZE, "DELETE FROM ledger_runs WHERE outcome = 'Snooze'"),
        (SNOOZE, "UPDATE sqlane_jobs SET attempts = attempts + 1 WHERE job_name = 'order.pack'"),
    ],
)
def test_harm_breaks_this_promise_and_no_other(played: tuple[sa.Engine, str], promise: str, harm: str) -> None:
    engine, schema = played
    with engine.connect() as conn:
        assert all(verdicts(conn, schema).values())
        changed = conn.exec_driver_sql(harm.replace("%", "%%"))
        assert changed.rowcount > 0
        assert [text for text, kept in verdicts(conn, schema).items() if not kept] == [promise]
        conn.rollback()


def test_a_lost_job_of_the_hanging_printer(played: tuple[sa.Engine, str]) -> None:
    engine, schema = played
    with engine.connect() as conn:
        verify(conn, schema)
        conn.exec_driver_sql(f"DELETE FROM sqlane_jobs WHERE id = {A_PRINTING.replace('%', '%%')}")
        assert [text for text, kept in verdicts(conn, schema).items() if not kept] == [HAS_JOBS, HANGS]


def test_nothing_that_happened_keeps_no_promise(played: tuple[sa.Engine, str]) -> None:
    engine, schema = played
    with engine.connect() as conn:
        verify(conn, schema)
        conn.exec_driver_sql("TRUNCATE sqlane_jobs, ledger_runs, ledger_placed, charges, orders, customers")
        assert not any(verdicts(conn, schema).values())


def test_what_is_measured_is_said(played: tuple[sa.Engine, str]) -> None:
    engine, schema = played
    with engine.connect() as conn:
        measured = {verdict.promise: verdict.measured for verdict in verify(conn, schema)}
        assert Queue(schema=schema).stats(conn)["order.charge"].failed == 2
    assert measured[HAS_JOBS] == "57 orders, 183 jobs, 0 missing"
    assert measured[ROLLED_BACK] == "3 rolled back, 0 jobs of theirs"
    assert measured[LOST] == "183 completed, 2 failed, 0 lost"
    assert measured[ONCE] == "55 due, 55 charged, 0 cents off"
    assert measured[HANGS] == "1 hung, 1 timed out, 1 done"
    # They fit beside the promise in 80 columns, with figures of four digits too.
    assert all(len(text) <= 32 for text in measured.values())
