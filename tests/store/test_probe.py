"""probe, probe_lanes and next_linger_end: when to look next, at a cost that does not depend on the backlog."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store.probe import PROBE
from tests.store.steps import add, age, claim, plan, run, running


def probe(conn: sa.Connection, queue: Queue) -> dict[str, int]:
    return dict(store.probe(conn, queue.tables))


def test_nothing_pending(any_conn: sa.Connection, queue: Queue) -> None:
    running(any_conn, queue)
    assert store.probe(any_conn, queue.tables) == []
    assert store.probe_lanes(any_conn, queue.tables) == []
    assert store.next_linger_end(any_conn, queue.tables) is None


def test_each_name_has_the_delay_of_its_next_job(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, "b", delay=60)
    add(any_conn, queue, "b", delay=30, priority=5)
    add(any_conn, queue, "b", delay=90, mutex_keys=["k"])
    age(any_conn, add(any_conn, queue, "a"), 10)
    add(any_conn, queue, "a", delay=10)
    add(any_conn, queue, "c", delay=20, mutex_keys=["k"])
    delays = probe(any_conn, queue)
    assert list(delays) == ["a", "b", "c"]
    assert list(delays.values()) == pytest.approx([-10_000, 30_000, 20_000], abs=1000)


def test_a_lane_is_a_name_and_a_priority_with_or_without_keys(any_conn: sa.Connection, queue: Queue) -> None:
    for priority in (3, -32768, 32767, 0):
        add(any_conn, queue, "b", priority=priority, delay=60)
        add(any_conn, queue, "b", priority=priority)
    add(any_conn, queue, "b", priority=0, mutex_keys=["k"], delay=60)
    add(any_conn, queue, "a", priority=1, mutex_keys=["k"])
    lanes = store.probe_lanes(any_conn, queue.tables)
    assert [lane[:3] for lane in lanes] == [
        ("a", 1, True),
        ("b", -32768, False),
        ("b", 0, False),
        ("b", 0, True),
        ("b", 3, False),
        ("b", 32767, False),
    ]
    assert [lane.delay_ms > 50_000 for lane in lanes] == [False, False, False, True, False, False]


def test_a_delay_is_rounded_up(any_conn: sa.Connection, queue: Queue) -> None:
    """Rounded down, the worker would wake before the job is due and look in vain."""
    add(any_conn, queue, delay=0.5)
    exact = "SELECT 1000 * extract(epoch FROM run_at - statement_timestamp()) FROM sqlane_jobs"
    both = f"SELECT delay_ms, ({exact}) FROM ({PROBE.on(queue.tables).element.text}) AS probe"
    for _ in range(20):
        rounded, delay = any_conn.execute(sa.text(both)).one()
        assert rounded - 1 < delay <= rounded


def test_names_are_in_byte_order_whatever_the_collation(any_conn: sa.Connection, queue: Queue) -> None:
    names = ["Z", "a", "a b", "a-b", "ab", "é", "\U0001f600"]
    for name in names:
        add(any_conn, queue, name)
    assert list(probe(any_conn, queue)) == names


def test_the_cost_depends_on_the_names_and_not_on_the_backlog(conn: sa.Connection, queue: Queue) -> None:
    for name in ("a", "b", "c"):
        add(conn, queue, name)
        add(conn, queue, name, mutex_keys=["k"])
    run(conn, "SET LOCAL enable_seqscan = off")
    for backlog in (0, 30_000):
        run(
            conn,
            """INSERT INTO sqlane_jobs (id, job_name, priority, mutex_keys)
            SELECT 'x' || i, chr(97 + i % 3), 0, CASE WHEN i % 2 = 0 THEN ARRAY['k'] END
            FROM generate_series(1, CAST(:n AS int)) AS i""",
            n=backlog,
        )
        nodes = plan(conn, PROBE.on(queue.tables).element.text, {}, analyze=True)
        scans = [node for node in nodes if "Index" in node["Node Type"]]
        assert scans
        assert "Seq Scan" not in {node["Node Type"] for node in nodes}
        # Two lanes a name, and in each kind one probe more that finds no next lane.
        assert sum(node["Actual Loops"] for node in scans) == 8
        # An index probe reads the path from the root and at most a heap page: nothing that grows with the rows.
        assert nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"] <= 8 * 5


def test_the_next_linger_end(any_conn: sa.Connection, queue: Queue) -> None:
    for key, linger in (("a", 40), ("b", 20), ("c", None)):
        job = running(any_conn, queue, mutex_keys=[key])
        if linger:
            store.release(any_conn, queue.tables, job=job, delay=timedelta(hours=1), linger=linger)
    assert store.next_linger_end(any_conn, queue.tables) == pytest.approx(20_000, abs=1000)
    run(any_conn, "UPDATE sqlane_mutexes SET held_until = statement_timestamp() WHERE mutex_key = 'b'")
    assert store.next_linger_end(any_conn, queue.tables) == pytest.approx(40_000, abs=1000)
    assert claim(any_conn, queue) == []
