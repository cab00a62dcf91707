"""An id of the caller's: the second enqueue changes nothing, also against a transaction that is still open."""

from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Enqueued, Queue, store
from tests.enqueue.business import seen
from tests.store.races import rival


@pytest.fixture(autouse=True)
def name(queue: Queue) -> None:
    queue.define("n")
    queue.define("other", max_attempts=1)


ROWS = """SELECT to_jsonb(j), CAST(p.payload AS text), (SELECT count(*) FROM sqlane_waits), j.xmin, p.xmin
    FROM sqlane_jobs AS j JOIN sqlane_payloads AS p USING (id)"""


def stored(engine: sa.Engine) -> list[Any]:
    """All of it, with the transactions that wrote it last."""
    with engine.connect() as conn:
        return list(conn.execute(sa.text(ROWS)))


def test_the_second_changes_nothing(engine: sa.Engine, queue: Queue) -> None:
    with engine.begin() as conn:
        assert queue.enqueue(conn, "n", {"first": True}, id="one") == Enqueued("one", True)
    before = stored(engine)
    again = {"priority": 5, "delay": 60, "mutex_keys": ["k"], "id": "one"}
    with engine.begin() as conn:
        assert queue.enqueue(conn, "other", {"second": True}, **again) == Enqueued("one", False)
        assert queue.enqueue_many(conn, [queue.new("other", **again)] * 2) == [Enqueued("one", False)] * 2
    assert len(before) == 1
    assert stored(engine) == before


def test_on_every_driver(any_conn: sa.Connection, queue: Queue) -> None:
    answers = [queue.enqueue(any_conn, "n", number, id="one").created for number in range(3)]
    assert answers == [True, False, False]
    found = queue.get(any_conn, "one")
    assert found is not None
    assert found.payload == 0


def test_also_when_the_job_is_done(conn: sa.Connection, queue: Queue) -> None:
    """For as long as its row is kept."""
    queue.enqueue(conn, "n", id="one")
    [job] = store.claim(conn, queue.tables, candidate_ids=["one"], lock_token="t", locked_by="w", lease=60)
    store.complete(conn, queue.tables, jobs=[job])
    assert not queue.enqueue(conn, "n", id="one").created
    found = queue.get(conn, "one")
    assert found is not None
    assert found.status == "completed"


def test_an_id_of_a_rolled_back_job_is_free(engine: sa.Engine, queue: Queue) -> None:
    with engine.connect() as conn:
        for _ in range(2):
            assert queue.enqueue(conn, "n", id="one").created
            conn.rollback()
    assert seen(engine) == (0, 0, 0, 0)


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_at_once(engine: sa.Engine, queue: Queue, first_commits: bool) -> None:
    """The second waits for the first's fate: one job in the end, and whoever made it knows."""
    with engine.connect() as first:
        assert queue.enqueue(first, "n", "first", id="one").created
        with rival(engine, lambda conn: queue.enqueue(conn, "n", "second", id="one", mutex_keys=["k"])) as second:
            first.commit() if first_commits else first.rollback()
        assert second.result() == Enqueued("one", not first_commits)
        found = queue.get(first, "one")
    assert found is not None
    assert found.payload == ("first" if first_commits else "second")
    assert seen(engine) == (0, 1, 1, int(not first_commits))


def test_two_batches_in_opposite_order_do_not_deadlock(engine: sa.Engine, queue: Queue) -> None:
    """Both are held up half way by a third, and then go on."""

    def enqueue(conn: sa.Connection, *ids: str) -> list[bool]:
        return [one.created for one in queue.enqueue_many(conn, [queue.new("n", id=id) for id in ids])]

    with engine.connect() as third:
        enqueue(third, "m")
        with rival(engine, lambda conn: enqueue(conn, "a", "m", "z")) as one:
            with rival(engine, lambda conn: enqueue(conn, "z", "m", "a"), n=2) as other:
                third.rollback()
    assert sorted([one.result(), other.result()]) == [[False] * 3, [True] * 3]


def test_a_job_without_an_id_never_meets_another(engine: sa.Engine, queue: Queue) -> None:
    with engine.begin() as conn:
        ids = {queue.enqueue(conn, "n").id for _ in range(100)}
    assert len(ids) == 100
    assert seen(engine) == (0, 100, 100, 0)
