"""A job is part of the caller's transaction, on each of the things it can be enqueued on."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.enqueue.business import NOTHING, seen
from tests.enqueue.doors import ASYNC, SYNC, Door, opened
from tests.wakeups import Heard

pytestmark = pytest.mark.usefixtures("asleep")


@pytest.fixture(params=SYNC + ASYNC)
def door(request: pytest.FixtureRequest, database_url: str, engine: sa.Engine, queue: Queue) -> Iterator[Door]:
    queue.define("n", mutex_keys=["k"])
    with opened(request.param, database_url, queue) as door:
        yield door


def test_a_commit_brings_the_job_its_payload_and_its_wake_up(
    door: Door, engine: sa.Engine, queue: Queue, heard: Heard
) -> None:
    door.order(1)
    job = door.add({"order": 1})
    assert seen(engine) == NOTHING
    assert heard() == 0
    door.commit()
    assert seen(engine) == (1, 1, 1, 1)
    assert heard() == 1
    with engine.connect() as conn:
        found = queue.get(conn, job.id)
    assert found is not None
    assert (found.name, found.status, found.payload) == ("n", "pending", {"order": 1})


def test_a_rollback_takes_all_of_it_back(door: Door, engine: sa.Engine, heard: Heard) -> None:
    door.order(1)
    door.add(1)
    door.add_many([door.queue.new("n", i) for i in range(3)])
    door.rollback()
    door.commit()
    assert seen(engine) == NOTHING
    assert heard() == 0


def test_after_a_rollback_the_handle_serves_again(door: Door, engine: sa.Engine, heard: Heard) -> None:
    door.add(1)
    door.rollback()
    door.add(2)
    door.commit()
    assert seen(engine) == (0, 1, 1, 1)
    assert heard() == 1


def test_the_rollback_of_a_savepoint_takes_its_jobs_alone(door: Door, engine: sa.Engine, heard: Heard) -> None:
    door.order(1)
    savepoint = door.savepoint()
    lost = door.add("lost")
    savepoint.rollback()
    door.commit()
    assert seen(engine) == (1, 0, 0, 0)
    assert heard() == 0
    with engine.connect() as conn:
        assert door.queue.get(conn, lost.id) is None


@pytest.mark.parametrize("outer_commits", [True, False])
def test_a_committed_savepoint_shares_the_fate_of_the_outer_one(
    door: Door, engine: sa.Engine, heard: Heard, outer_commits: bool
) -> None:
    """G79: two levels, of which the inner one always commits."""
    door.order(1)
    outer = door.savepoint()
    inner = door.savepoint()
    door.add()
    inner.commit()
    outer.commit() if outer_commits else outer.rollback()
    door.commit()
    assert seen(engine) == ((1, 1, 1, 1) if outer_commits else (1, 0, 0, 0))
    assert heard() == int(outer_commits)


def test_many_come_back_in_the_order_given(door: Door, engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    results = door.add_many([queue.new("n", i, id=id) for i, id in enumerate(["b", None, "a"])])
    door.commit()
    assert [one.created for one in results] == [True] * 3
    assert [results[0].id, results[2].id] == ["b", "a"]
    with engine.connect() as conn:
        assert [job and job.payload for job in (queue.get(conn, one.id) for one in results)] == [0, 1, 2]
    assert heard() == 1


def test_no_jobs_are_fine(door: Door, engine: sa.Engine) -> None:
    assert door.add_many([]) == []
    door.commit()
    assert seen(engine) == NOTHING
