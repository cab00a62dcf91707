"""complete_keyed: completion and freed keys in one statement, of whatever nobody else has locked."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.statement import Statement, array_literal
from sqlane_sa.store.complete_keyed import COMPLETE_KEYED
from sqlane_sa.store.locks import FREE, LOCK_HOLDS
from tests.store.races import committed, rival
from tests.store.steps import (
    about,
    add,
    add_many,
    claim,
    end_lease,
    holds,
    job_row,
    plan,
    rows,
    run,
    running,
    status,
)
from tests.wakeups import Heard


def complete(conn: sa.Connection, queue: Queue, *jobs: store.ClaimedJob) -> list[str]:
    return sorted(store.complete_keyed(conn, queue.tables, jobs=jobs))


def test_a_completed_job(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", completed_retention=100)
    job = running(any_conn, queue, "n", {"a": 1}, mutex_keys=["b", "a", "ä\\"])
    other = running(any_conn, queue, mutex_keys=["c"])
    assert complete(any_conn, queue, job) == [job.id]
    row = job_row(any_conn, job.id)
    assert (row["status"], row["attempts"], row["expires_at"]) == ("completed", 1, about(100))
    assert [row[name] for name in ("lock_token", "locked_by", "locked_until")] == [None] * 3
    assert holds(any_conn) == {"c": (other.id, False)}
    assert rows(any_conn, "SELECT id FROM sqlane_payloads") == [other.id]
    assert complete(any_conn, queue, job) == []
    assert complete(any_conn, queue) == []


def test_a_retention_of_nothing(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", completed_retention=0)
    job = running(any_conn, queue, mutex_keys=["k"])
    assert complete(any_conn, queue, job) == [job.id]
    assert (status(any_conn, job.id), holds(any_conn)) == (None, {})


def test_what_is_locked_is_passed_over_with_its_keys(engine: sa.Engine, queue: Queue) -> None:
    jobs = committed(engine, lambda conn: [running(conn, queue, mutex_keys=[key]) for key in "ab"])
    with engine.begin() as one:
        run(one, "SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE", id=jobs[0].id)
        assert committed(engine, lambda conn: complete(conn, queue, *jobs)) == [jobs[1].id]
    with engine.begin() as conn:
        assert holds(conn) == {"a": (jobs[0].id, False)}
        assert complete(conn, queue, *jobs) == [jobs[0].id]
        assert holds(conn) == {}


def test_what_lingers_after_an_earlier_lock_stays(engine: sa.Engine, queue: Queue) -> None:
    """Recovered, and started anew with its other keys, while the first handler may still run."""
    with engine.begin() as conn:
        job = running(conn, queue, mutex_keys=["k"])
        end_lease(conn, job.id)
        store.recover_stale(conn, queue.tables, id=job.id, lease=60, stall_delay=0)
        run(conn, "UPDATE sqlane_jobs SET mutex_keys = NULL, run_at = now() - interval '1 minute'")
        (again,) = claim(conn, queue, job.id, token="again")
        assert complete(conn, queue, job) == []
        assert complete(conn, queue, again._replace(mutex_keys=["k"])) == [job.id]
        assert holds(conn) == {"k": (job.id, True)}


def test_it_waits_for_a_key_and_frees_it(engine: sa.Engine, queue: Queue) -> None:
    """A claim that found the key busy locks its row until it ends."""
    job = committed(engine, lambda conn: running(conn, queue, mutex_keys=["a", "b"]))
    with engine.begin() as one:
        run(one, "SELECT FROM sqlane_mutexes WHERE mutex_key = 'a' FOR UPDATE")
        with rival(engine, lambda conn: complete(conn, queue, job)) as result:
            one.rollback()
    assert result.result() == [job.id]
    assert committed(engine, holds) == {}


def test_keys_are_locked_in_their_order(engine: sa.Engine, queue: Queue) -> None:
    """Else two would wait in a circle: this one holds "b" and wants "a", whose owner wants "b"."""
    job = committed(engine, lambda conn: running(conn, queue, mutex_keys=["b", "a"]))
    with engine.begin() as one:
        run(one, "SELECT FROM sqlane_mutexes WHERE mutex_key = 'a' FOR UPDATE")
        with rival(engine, lambda conn: complete(conn, queue, job)) as result:
            run(one, "SELECT FROM sqlane_mutexes WHERE mutex_key = 'b' FOR UPDATE NOWAIT")
            one.rollback()
    assert result.result() == [job.id]


@pytest.mark.usefixtures("asleep")
@pytest.mark.parametrize(("waits", "hints"), [(True, 1), (False, 0)])
def test_it_wakes_whoever_may_wait_for_the_key(
    engine: sa.Engine, queue: Queue, heard: Heard, waits: bool, hints: int
) -> None:
    job = committed(engine, lambda conn: running(conn, queue, mutex_keys=["k"]))
    if waits:
        committed(engine, lambda conn: add(conn, queue, mutex_keys=["k"]))
    heard()
    committed(engine, lambda conn: complete(conn, queue, job))
    assert heard() == hints


@pytest.mark.parametrize("statement", [COMPLETE_KEYED, FREE, LOCK_HOLDS], ids=["complete", "free", "lock"])
def test_each_key_is_one_probe_in_a_plan_made_while_few_were_held(
    engine: sa.Engine, queue: Queue, statement: Statement
) -> None:
    """A join would compare each job with each key, and its plan would stay."""
    with engine.begin() as conn:
        running(conn, queue, mutex_keys=["first"])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("VACUUM ANALYZE")
    with engine.begin() as conn:
        store.pin_plans(conn)
        ids = [add(conn, queue, mutex_keys=[f"k{n}"]) for n in range(50)]
        jobs = claim(conn, queue, *ids)
        tokens = [job.lock_token for job in jobs]
        keys = [key for job in jobs for key in job.mutex_keys or ()]
        arrays = {"ids": ids, "tokens": tokens, "keys": keys, "owners": ids, "owner_tokens": tokens}
        values = {name: array_literal(items) for name, items in arrays.items()} | {"channel": "c"}
        sql = statement.on(queue.tables)
        text = sql.element.text if isinstance(sql, sa.TextualSelect) else sql.text
        nodes = plan(conn, text, {name: values[name] for name in statement.binds}, analyze=True)
    assert not [node for node in nodes if node["Node Type"] == "Materialize"]
    assert sum(node.get("Rows Removed by Join Filter", 0) for node in nodes) == 0


def test_many_at_once(engine: sa.Engine, queue: Queue) -> None:
    with engine.begin() as conn:
        ids = [add(conn, queue, mutex_keys=[f"k{n}", f"l{n}"]) for n in range(30)]
        add_many(conn, queue, 3)
        jobs = claim(conn, queue, *ids)
        assert complete(conn, queue, *jobs[:20]) == sorted(ids[:20])
        assert set(holds(conn)) == {f"{name}{n}" for name in "kl" for n in range(20, 30)}
