"""A claim takes no more than it was asked for, whatever plan PostgreSQL chooses, and finds it by index probes."""

from itertools import combinations

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store.claim import CLAIM_PLAIN, START
from tests.store.steps import add, add_many, candidates, claim, plan, rows, run

METHODS = ("hashjoin", "mergejoin", "hashagg", "material", "sort", "nestloop", "seqscan", "indexscan", "bitmapscan")
JOINS = METHODS[:5]
SETS = [(), JOINS, *combinations(METHODS, 1), (*JOINS, "seqscan"), (*JOINS, "indexscan"), METHODS]


def switch_off(conn: sa.Connection, methods: tuple[str, ...], cached: str) -> None:
    for method in methods:
        conn.exec_driver_sql(f"SET LOCAL enable_{method} = off")
    conn.exec_driver_sql(f"SET LOCAL plan_cache_mode = {cached}")


def count_running(conn: sa.Connection) -> int:
    return rows(conn, "SELECT count(*) FROM sqlane_jobs WHERE status = 'running'")[0]


@pytest.mark.parametrize("cached", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("n", [5, 500])
def test_never_more_than_asked(engine: sa.Engine, queue: Queue, n: int, cached: str) -> None:
    """n = 5: tables of one page. Nothing was analysed at first, and then it was."""
    with engine.begin() as conn:
        add_many(conn, queue, n)
        for i in range(n):
            add(conn, queue, "keyed", mutex_keys=[f"k{i % 50}"])
    for analysed in (False, True):
        for methods in SETS:
            with engine.connect() as conn:
                switch_off(conn, methods, cached)
                lanes = [("n", 0, 3)]
                got = store.claim_plain(conn, queue.tables, lanes=lanes, lock_token="t", locked_by="w", lease=60)
                assert (len(got), count_running(conn)) == (3, 3), methods
                ids = candidates(conn, queue, limit=2)
                assert len(ids) == 4
                assert len(claim(conn, queue, *ids)) == 4
                assert count_running(conn) == 7, methods
        if not analysed:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
                conn.exec_driver_sql("VACUUM ANALYZE")


def test_pinned_plans_read_no_whole_table(engine: sa.Engine, queue: Queue) -> None:
    with engine.begin() as conn:
        add_many(conn, queue, 3000)
        run(conn, "UPDATE sqlane_jobs SET status = 'completed' WHERE id IN (SELECT id FROM sqlane_jobs LIMIT 2900)")
    with engine.connect() as conn:
        store.pin_plans(conn)
        shapes = {
            CLAIM_PLAIN: {
                "names": "{n}",
                "priorities": "{0}",
                "limits": "{3}",
                "after_times": "{-infinity}",
                "after_ids": '{""}',
                "lock_token": "t",
                "locked_by": "w",
                "lease_ms": 1,
                "inline_bytes": 1,
            },
            START: {"ids": "{a,b}", "lock_token": "t", "locked_by": "w", "lease_ms": 1},
        }
        for statement, parameters in shapes.items():
            nodes = plan(conn, statement.on(queue.tables).element.text, parameters)
            kinds = {node["Node Type"] for node in nodes if node.get("Relation Name", "").startswith("sqlane_")}
            assert "Seq Scan" not in kinds


def test_pinned_settings_end_with_the_transaction(engine: sa.Engine) -> None:
    """Also where they differ from what the session has: another would go on with them behind a pooler."""
    names = ("jit", "enable_seqscan", "enable_hashjoin", "enable_mergejoin", "plan_cache_mode", "lock_timeout")
    names += ("datestyle", "idle_in_transaction_session_timeout")
    show = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    with engine.connect() as conn:
        conn.exec_driver_sql("SET datestyle = 'German, DMY'")
        conn.commit()
        before = rows(conn, show)
        store.pin_plans(conn, idle_limit=2.5)
        assert rows(conn, show) == [("off", "off", "off", "off", "force_generic_plan", "1s", "ISO, DMY", "2500ms")]
        store.wait_briefly(conn)
        assert rows(conn, "SHOW lock_timeout") == ["50ms"]
        conn.commit()  # a rollback would take back what was set for the session, too
        assert rows(conn, show) == before


@pytest.mark.parametrize(
    ("theirs", "ours", "used"), [("0", 60, "1min"), ("2s", 60, "2s"), ("1h", 60, "1min"), ("1h", None, "1h")]
)
def test_the_server_waits_for_a_transaction_of_ours_for_the_shorter_time(
    queue: Queue, engine: sa.Engine, theirs: str, ours: float | None, used: str
) -> None:
    queue.define("job")
    show = "SHOW idle_in_transaction_session_timeout"
    with engine.connect() as conn:
        conn.exec_driver_sql(f"SET idle_in_transaction_session_timeout = '{theirs}'")
        conn.commit()
        store.pin_plans(conn, idle_limit=ours)
        assert rows(conn, show) == [used]
        conn.rollback()
        id_ = queue.enqueue(conn, "job").id
        (job,) = store.claim(conn, queue.tables, candidate_ids=[id_], lock_token="t", locked_by="w", lease=60)
        assert rows(conn, show) == [theirs]
        assert store.complete(conn, queue.tables, jobs=[job], idle_limit=ours) == [id_]
        assert rows(conn, show) == [used]
        conn.rollback()
        store.pin_session(conn, idle_limit=ours)
        conn.commit()
        assert rows(conn, show) == [used]
