"""One clock: the database's, at the moment of each statement, also within one long transaction."""

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.ids import new_id
from tests.store.races import committed, rival
from tests.store.steps import add, candidates, claim, end_lease, rows, run, running
from tests.support import wait_until

NOW = "SELECT now(), statement_timestamp()"


def let_time_pass(conn: sa.Connection) -> object:
    """Wait until the statement's time has left the transaction's by 50 ms; the transaction's."""
    wait_until(lambda: rows(conn, "SELECT statement_timestamp() - now() > interval '50 ms'") == [True])
    return rows(conn, "SELECT now()")[0]


def test_everything_moves_within_a_transaction(any_conn: sa.Connection, queue: Queue) -> None:
    begun = let_time_pass(any_conn)
    tables = queue.tables
    times = {}

    def note(what: str, column: str, id: str) -> None:
        times[what] = rows(any_conn, f"SELECT {column} FROM sqlane_jobs WHERE id = :id", id=id)[0]

    id = add(any_conn, queue)
    note("enqueued", "run_at", id)
    note("created", "created_at", id)
    assert candidates(any_conn, queue) == [id], "due by the time of the statement"
    [job] = claim(any_conn, queue, id, lease=0)
    note("started", "started_at", id)
    note("lease", "locked_until", id)
    store.renew_leases(any_conn, tables, jobs=[job], lease=0)
    note("renewed", "locked_until", id)
    store.mark_timed_out(any_conn, tables, jobs=[job])
    note("timed out", "timed_out_at", id)
    store.retry(any_conn, tables, job=job)
    note("retried", "run_at", id)
    [job] = claim(any_conn, queue, id, token=new_id())
    store.release(any_conn, tables, job=job, delay=0)
    note("released", "run_at", id)
    claim(any_conn, queue, id, token=new_id(), lease=0)
    assert store.find_stale(any_conn, tables, limit=1) == [id]
    assert store.recover_stale(any_conn, tables, id=id, lease=0, stall_delay=0).status == "pending"
    note("recovered", "run_at", id)
    [job] = claim(any_conn, queue, id, token=new_id())
    store.complete(any_conn, tables, jobs=[job])
    note("finished", "finished_at", id)
    order = list(times)
    assert sorted(order, key=lambda what: (times[what], order.index(what))) == order
    assert times["enqueued"] > begun


def test_times_without_an_offset_mean_nothing_to_the_session(any_conn: sa.Connection, queue: Queue) -> None:
    for zone in ("Asia/Kathmandu", "America/New_York", "+05:45", "<+0545>-05:45", "UTC"):
        any_conn.execute(sa.text("SELECT set_config('TimeZone', :zone, true)"), {"zone": zone})
        id = add(any_conn, queue, zone)
        assert dict(store.probe(any_conn, queue.tables))[zone] <= 0
        [job] = claim(any_conn, queue, id)
        assert 0 <= job.waited_ms < 10_000
        assert store.find_stale(any_conn, queue.tables, limit=1) == []
        end_lease(any_conn, id)
        assert store.find_stale(any_conn, queue.tables, limit=1) == [id]
        found = store.get(any_conn, queue.tables, id=id)
        assert found is not None
        assert found.created_at == job.enqueued_at
        store.complete(any_conn, queue.tables, jobs=[job])


def test_a_completion_has_the_time_of_the_end_of_a_wait(engine: sa.Engine, queue: Queue) -> None:
    jobs = [committed(engine, lambda conn: running(conn, queue)) for _ in range(2)]
    with engine.connect() as one:
        run(one, "SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE", id=jobs[1].id)
        with rival(engine, lambda conn: store.complete(conn, queue.tables, jobs=jobs)) as result:
            waited_until = rows(one, "SELECT date_trunc('milliseconds', clock_timestamp())")[0]
            one.rollback()
        assert sorted(result.result()) == sorted(job.id for job in jobs)
        assert rows(one, "SELECT finished_at FROM sqlane_jobs WHERE id = :id", id=jobs[1].id)[0] >= waited_until
        assert rows(one, "SELECT count(*) FROM sqlane_payloads") == [0]


def test_a_retry_counts_from_the_end_of_a_wait(engine: sa.Engine, queue: Queue) -> None:
    """Its statement would have begun before the wait: the time comes from the one after."""
    job = committed(engine, lambda conn: running(conn, queue))
    with engine.connect() as one:
        run(one, "SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE", id=job.id)
        with rival(engine, lambda conn: store.retry(conn, queue.tables, job=job)) as result:
            waited_until = rows(one, "SELECT date_trunc('milliseconds', clock_timestamp())")[0]
            one.rollback()
        assert result.result() is True
        assert rows(one, "SELECT run_at FROM sqlane_jobs")[0] >= waited_until
