"""claim: what starts, in which order, with which facts; keys all or none."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import DueJob
from tests.store.steps import (
    about,
    add,
    add_many,
    age,
    claim,
    end_lingers,
    holds,
    ids_of,
    job_row,
    lines,
    rows,
    run,
    running,
    status,
)


def test_a_started_job(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", max_attempts=7, max_stalls=4, failure_job="sorry", mutex_keys=["b", "a"], priority=2)
    id = add(any_conn, queue, "n")
    age(any_conn, id, 5)
    run(any_conn, "UPDATE sqlane_jobs SET attempts = 2, stalls = 1, timed_out_at = run_at WHERE id = :id", id=id)
    [job] = claim(any_conn, queue, id, token="t", lease=40)
    assert (job.id, job.name, job.attempts, job.attempt, job.max_attempts) == (id, "n", 2, 3, 7)
    assert (job.stalls, job.max_stalls, list(job.mutex_keys or ()), job.failure_job) == (1, 4, ["a", "b"], "sorry")
    assert (job.lock_token, job.priority, job.payload_text) == ("t", 2, None)
    assert 5000 <= job.waited_ms < 60_000
    row = job_row(any_conn, id)
    assert (row["status"], row["lock_token"], row["locked_by"]) == ("running", "t", "worker-1")
    assert (row["locked_until"], row["started_at"], row["timed_out_at"]) == (
        about(40),
        about(0),
        None,
    )
    assert (row["created_at"], row["attempts"], row["stalls"]) == (job.enqueued_at, 2, 1)


def test_started_in_the_order_of_the_candidates(any_conn: sa.Connection, queue: Queue) -> None:
    ids = add_many(any_conn, queue, 5)
    order = [ids[i] for i in (3, 0, 4, 1)]
    assert ids_of(claim(any_conn, queue, *order)) == order
    assert status(any_conn, ids[2]) == "pending"


def test_only_what_is_pending_and_due(any_conn: sa.Connection, queue: Queue) -> None:
    delayed, taken, done, id = add(any_conn, queue, delay=60), *add_many(any_conn, queue, 3)
    store.complete(any_conn, queue.tables, jobs=claim(any_conn, queue, done))
    claim(any_conn, queue, taken, token="other")
    assert ids_of(claim(any_conn, queue, delayed, taken, done, "unknown", id)) == [id]
    assert job_row(any_conn, taken)["lock_token"] == "other"
    assert claim(any_conn, queue) == []


def test_the_keys_are_held_and_the_lines_left(any_conn: sa.Connection, queue: Queue) -> None:
    first = add(any_conn, queue, mutex_keys=["a", "b"])
    second = add(any_conn, queue, mutex_keys=["b"])
    [job] = claim(any_conn, queue, first)
    assert holds(any_conn) == {"a": (first, False), "b": (first, False)}
    assert rows(any_conn, "SELECT DISTINCT lock_token FROM sqlane_mutexes") == [job.lock_token]
    assert lines(any_conn) == [("b", second)]


def test_a_busy_key_takes_the_whole_job_back(any_conn: sa.Connection, queue: Queue) -> None:
    holder = running(any_conn, queue, mutex_keys=["b"])
    blocked = add(any_conn, queue, mutex_keys=["a", "b", "c"])
    free = add(any_conn, queue, mutex_keys=["d"])
    everything = {"pick": lambda due, busy: due}
    for pick in ({}, everything):
        assert claim(any_conn, queue, blocked, **pick) == []
        assert holds(any_conn) == {"b": (holder.id, False)}, "no part of its keys stays held"
    assert ids_of(claim(any_conn, queue, blocked, free, **everything)) == [free]
    assert status(any_conn, blocked) == "pending"
    assert {key for key, id in lines(any_conn) if id == blocked} == {"a", "b", "c"}


def test_one_claim_never_starts_two_jobs_of_a_key(any_conn: sa.Connection, queue: Queue) -> None:
    first = add(any_conn, queue, mutex_keys=["k", "l"])
    second = add(any_conn, queue, mutex_keys=["k"])
    for pick in (store.pick_free, lambda due, busy: due):
        assert ids_of(claim(any_conn, queue, second, first, pick=pick)) in ([second], [])
    assert holds(any_conn) == {"k": (second, False)}


def test_an_ended_linger_is_taken_over(any_conn: sa.Connection, queue: Queue) -> None:
    old = running(any_conn, queue, mutex_keys=["k"])
    store.release(any_conn, queue.tables, job=old, linger=60)
    id = add(any_conn, queue, mutex_keys=["k"])
    assert claim(any_conn, queue, id, pick=lambda due, busy: due) == []
    assert holds(any_conn) == {"k": (old.id, True)}
    end_lingers(any_conn)
    [job] = claim(any_conn, queue, id, token="new")
    assert holds(any_conn) == {"k": (id, False)}
    # The old holder finishes late: it has lost the key.
    store.complete(any_conn, queue.tables, jobs=[old])
    assert holds(any_conn) == {"k": (id, False)}
    assert rows(any_conn, "SELECT lock_token FROM sqlane_mutexes") == [job.lock_token]


def test_pick_sees_the_due_jobs_and_the_busy_keys(any_conn: sa.Connection, queue: Queue) -> None:
    held = running(any_conn, queue, mutex_keys=["held"])
    lingering = running(any_conn, queue, mutex_keys=["linger"])
    ended = running(any_conn, queue, mutex_keys=["ended"])
    store.release(any_conn, queue.tables, job=lingering, linger=60, delay=60)
    store.release(any_conn, queue.tables, job=ended, linger=0.001, delay=60)
    end_linger = "UPDATE sqlane_mutexes SET held_until = statement_timestamp() WHERE mutex_key = 'ended'"
    run(any_conn, end_linger)
    keyed = add(any_conn, queue, "b", priority=4, mutex_keys=["held", "linger", "ended", "free"])
    plain = add(any_conn, queue, "a")
    seen: list[tuple[Sequence[DueJob], Collection[str]]] = []

    def pick(due: Sequence[DueJob], busy: Collection[str]) -> list[DueJob]:
        seen.append((due, busy))
        return []

    assert claim(any_conn, queue, plain, keyed, held.id, pick=pick) == []
    [(due, busy)] = seen
    assert [(job.id, job.name, job.priority) for job in due] == [(plain, "a", 0), (keyed, "b", 4)]
    assert due[0].mutex_keys is None
    assert list(due[1].mutex_keys or ()) == ["ended", "free", "held", "linger"]
    assert set(busy) == {"held", "linger"}
    assert status(any_conn, plain) == "pending"


def test_pick_chooses_a_part_and_an_order(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [add(any_conn, queue, mutex_keys=[key] if key else None) for key in ("", "k", "", "l")]
    started = claim(any_conn, queue, *ids, pick=lambda due, busy: (due[i] for i in (3, 2, 0)))
    assert ids_of(started) == [ids[3], ids[2], ids[0]]
    assert set(holds(any_conn)) == {"l"}


def test_a_job_picked_twice_starts_once(any_conn: sa.Connection, queue: Queue) -> None:
    ids = add_many(any_conn, queue, 2)
    assert ids_of(claim(any_conn, queue, *ids, pick=lambda due, busy: [due[1], due[0], due[1]])) == [ids[1], ids[0]]


def test_what_is_picked_must_be_due(any_conn: sa.Connection, queue: Queue) -> None:
    """A pick that returns rows it saw earlier must not start a job that another worker holds by now."""
    taken, id = add_many(any_conn, queue, 2)
    seen: list[DueJob] = []
    claim(any_conn, queue, taken, pick=lambda due, busy: seen.extend(due) or [])
    claim(any_conn, queue, taken, token="other")
    assert ids_of(claim(any_conn, queue, id, pick=lambda due, busy: [*seen, *due])) == [id]
    assert job_row(any_conn, taken)["lock_token"] == "other"


def test_many_jobs_with_many_keys(conn: sa.Connection, queue: Queue) -> None:
    ids = [add(conn, queue, mutex_keys=[f"{i}-{j}" for j in range(100)]) for i in range(20)]
    assert ids_of(claim(conn, queue, *ids)) == ids
    assert len(holds(conn)) == 2000


def test_two_that_are_picked_with_a_key_in_common(any_conn: sa.Connection, queue: Queue) -> None:
    """Whatever `pick` returns: the first one starts."""
    first = add(any_conn, queue, mutex_keys=["a", "k"])
    second = add(any_conn, queue, mutex_keys=["k", "z"])
    assert ids_of(claim(any_conn, queue, first, second, pick=lambda rows, busy: rows)) == [first]
    assert set(holds(any_conn)) == {"a", "k"}
    assert status(any_conn, second) == "pending"


def test_what_is_put_back_is_of_this_claim_alone(any_conn: sa.Connection, queue: Queue) -> None:
    """The linger of its own earlier run, whose handler may still be at work, stays."""
    job = running(any_conn, queue, mutex_keys=["a", "b"])
    store.release(any_conn, queue.tables, job=job, linger=60)
    run(any_conn, "DELETE FROM sqlane_mutexes WHERE mutex_key = 'a'")
    assert claim(any_conn, queue, job.id, token="new", pick=lambda rows, busy: rows) == []
    assert holds(any_conn) == {"b": (job.id, True)}
