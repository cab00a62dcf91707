"""Probes by id use the primary key, also where ANALYZE has seen nothing that is pending or running.

The partial indexes look like an empty page then, and hold the id as their last column: a plan that reads one of them
from end to end for each job is the cheapest one, is kept by a prepared statement, and gets slower with each job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.demo.server import Server
from sqlane_sa.store.finish import COMPLETE
from tests.conftest import new_database
from tests.store.steps import _nodes, add, add_many, claim, run
from tests.store.test_statements import NAMES, STATEMENTS

PARTIAL = re.compile(r"_jobs_(pending|pending_keyed|running|failed|expires)$")
BY_ID = re.compile(r"\(id = ")


def generic_plan(conn: sa.Connection, queue: Queue, name: str) -> list[dict[str, Any]]:
    """Every node of the plan that a prepared statement keeps."""
    statement = STATEMENTS[name]
    compiled = statement.on(queue.tables).compile(dialect=conn.dialect)
    sql, binds = str(compiled), list(dict.fromkeys(re.findall(r"%\((\w+)\)s", str(compiled))))
    for number, bind in enumerate(binds, 1):
        sql = re.sub(rf"%\({bind}\)s(::[A-Z]+( WITH TIME ZONE)?)?", f"${number}", sql)
    run_ = conn.exec_driver_sql
    run_("DEALLOCATE ALL")
    run_(f"PREPARE planned AS {sql.replace('%%', '%')}")
    nulls = f"({', '.join(['NULL'] * len(binds))})" if binds else ""
    text = run_(f"EXPLAIN (FORMAT JSON) EXECUTE planned{nulls}").scalar_one()
    return list(_nodes((json.loads(text) if isinstance(text, str) else text)[0]["Plan"]))


@pytest.fixture(scope="module")
def seen_empty(server: Server, admin: sa.Engine, template_url: str) -> Iterator[sa.Engine]:
    """A history, and nothing else, when it was analysed."""
    queue = Queue()
    with new_database(admin, str(sa.make_url(template_url).database)) as name:
        engine = sa.create_engine(server.url(name, tcp=True))
        with engine.begin() as conn:
            add_many(conn, queue, 3000)
            run(conn, "UPDATE sqlane_jobs SET status = 'completed'")
        analyse(engine)
        yield engine
        engine.dispose()


def analyse(engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("VACUUM ANALYZE")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("copying.")])
def test_a_probe_by_id_reads_the_primary_key(seen_empty: sa.Engine, name: str) -> None:
    with seen_empty.connect() as conn:
        store.pin_plans(conn)
        nodes = generic_plan(conn, Queue(), name)
    wrong = [
        f"{node['Index Name']}: {node['Index Cond']}"
        for node in nodes
        if PARTIAL.search(node.get("Index Name", "")) and BY_ID.search(node.get("Index Cond", ""))
    ]
    assert not wrong


def test_the_check_knows_the_trap(seen_empty: sa.Engine) -> None:
    """What the statements would do if they let the planner see that the row runs."""
    probe = "SELECT id FROM sqlane_jobs WHERE id = $1 AND status = 'running'"
    with seen_empty.connect() as conn:
        store.pin_plans(conn)
        conn.exec_driver_sql(f"PREPARE probe AS {probe}")
        text = conn.exec_driver_sql("EXPLAIN (FORMAT JSON) EXECUTE probe(NULL)").scalar_one()
        [node] = _nodes((json.loads(text) if isinstance(text, str) else text)[0]["Plan"])
    assert node["Index Name"] == "sqlane_jobs_running"
    assert BY_ID.search(node["Index Cond"])


def test_completing_costs_the_same_however_much_runs(engine: sa.Engine, queue: Queue) -> None:
    """Buffers for ten jobs, beside ten and beside two thousand that run."""
    counts = []
    with engine.begin() as conn:
        add(conn, queue)
        run(conn, "UPDATE sqlane_jobs SET status = 'completed'")
    analyse(engine)
    for others in (10, 2000):
        with engine.begin() as conn:
            jobs = claim(conn, queue, *add_many(conn, queue, 10 + others))[:10]
        with engine.begin() as conn:
            store.pin_plans(conn)
            counts.append(_buffers(conn, queue, [job.id for job in jobs], jobs[0].lock_token))
    assert counts[1] < 2 * counts[0]


def _buffers(conn: sa.Connection, queue: Queue, ids: list[str], token: str) -> int:
    sql = COMPLETE.on(queue.tables).element.text
    parameters = {"ids": "{" + ",".join(ids) + "}", "tokens": "{" + ",".join([token] * len(ids)) + "}"}
    text = conn.execute(sa.text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"), parameters).scalar_one()
    root = (json.loads(text) if isinstance(text, str) else text)[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])
