"""retry and release: back to pending, with or without an attempt used."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import ReleaseWrite, RetryWrite
from sqlane_sa.values.errors import DefinitionError
from sqlane_sa.values.job import JobLock
from tests.store.steps import about, age, candidates, claim, holds, job_row, lines, rows, running

UNLOCKED = ("lock_token", "locked_by", "locked_until", "started_at", "timed_out_at", "finished_at", "expires_at")


def test_a_retried_job(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, payload=[1], mutex_keys=["b", "a"])
    error = {"type": "ValueError", "message": 'é \U0001f600 \\ " {} %s'}
    assert store.retry(any_conn, queue.tables, job=job, delay=timedelta(seconds=30), error=error) is True
    row = job_row(any_conn, job.id)
    assert (row["status"], row["attempts"], row["stalls"], row["last_error"]) == ("pending", 1, 0, error)
    assert row["run_at"] == about(30)
    assert [row[name] for name in UNLOCKED] == [None] * len(UNLOCKED)
    assert holds(any_conn) == {}
    assert lines(any_conn) == [("a", job.id), ("b", job.id)]
    assert store.read_payloads(any_conn, queue.tables, ids=[job.id]) == {job.id: [1]}
    assert store.retry(any_conn, queue.tables, job=job, delay=0) is False


def test_a_released_job(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, mutex_keys=["k"])
    assert store.release(any_conn, queue.tables, job=job, delay=30) is True
    row = job_row(any_conn, job.id)
    assert (row["status"], row["attempts"], row["stalls"], row["last_error"]) == ("pending", 0, 0, None)
    assert row["run_at"] == about(30)
    assert [row[name] for name in UNLOCKED] == [None] * len(UNLOCKED)
    assert (holds(any_conn), lines(any_conn)) == ({}, [("k", job.id)])
    assert store.release(any_conn, queue.tables, job=job) is False


def test_a_release_keeps_the_last_error(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue)
    store.retry(any_conn, queue.tables, job=job, error={"message": "first"})
    [again] = claim(any_conn, queue, job.id, token="again")
    store.release(any_conn, queue.tables, job=again)
    assert job_row(any_conn, job.id)["last_error"] == {"message": "first"}


def test_a_release_without_a_delay_keeps_its_place_in_line(any_conn: sa.Connection, queue: Queue) -> None:
    first = running(any_conn, queue, mutex_keys=["k"])
    run_at = rows(any_conn, "SELECT run_at FROM sqlane_jobs")
    second = running(any_conn, queue, mutex_keys=["other"])
    age(any_conn, second.id, 0)
    store.release(any_conn, queue.tables, job=first, delay=None)
    assert rows(any_conn, "SELECT run_at FROM sqlane_jobs WHERE id = :id", id=first.id) == run_at
    assert lines(any_conn) == [("k", first.id)]
    assert candidates(any_conn, queue) == [first.id]


@pytest.mark.parametrize("write", [store.release, store.retry])
def test_the_keys_may_be_left_lingering(any_conn: sa.Connection, queue: Queue, write: Any) -> None:
    job = running(any_conn, queue, mutex_keys=["a", "b"])
    other = running(any_conn, queue, mutex_keys=["c"])
    assert write(any_conn, queue.tables, job=job, linger=timedelta(seconds=45)) is True
    assert holds(any_conn) == {"a": (job.id, True), "b": (job.id, True), "c": (other.id, False)}
    ends = "SELECT DISTINCT extract(epoch FROM held_until - statement_timestamp()) FROM sqlane_mutexes"
    assert rows(any_conn, ends + " WHERE held_until IS NOT NULL") == [about(45)]
    assert lines(any_conn) == [("a", job.id), ("b", job.id)]


@pytest.mark.parametrize("write", [store.release, store.retry, partial(store.fail, error=None)])
def test_an_impossible_linger_is_refused_before_anything_is_written(
    any_conn: sa.Connection, queue: Queue, write: Any
) -> None:
    job = running(any_conn, queue, mutex_keys=["k"])
    with pytest.raises(DefinitionError, match="linger=-1"):
        write(any_conn, queue.tables, job=job, linger=-1)
    assert (job_row(any_conn, job.id)["status"], holds(any_conn)) == ("running", {"k": (job.id, False)})


def test_a_stale_release_leaves_nothing_lingering(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, mutex_keys=["k"])
    store.retry(any_conn, queue.tables, job=job, delay=60)
    assert store.release(any_conn, queue.tables, job=job, linger=45) is False
    assert holds(any_conn) == {}


def test_a_retry_is_cut_to_the_millisecond(any_conn: sa.Connection, queue: Queue) -> None:
    for _ in range(20):
        job = running(any_conn, queue)
        store.retry(any_conn, queue.tables, job=job, delay=0)
        assert candidates(any_conn, queue) == [job.id]
        claim(any_conn, queue, job.id)


def test_many_at_once_each_with_its_own_facts(any_conn: sa.Connection, queue: Queue) -> None:
    jobs = [running(any_conn, queue, mutex_keys=[key]) for key in "abcd"]
    stale = JobLock(jobs[0].id, "stale")
    retries = [
        RetryWrite(jobs[0].id, jobs[0].lock_token, 10, {"n": 0}),
        RetryWrite(jobs[1].id, jobs[1].lock_token, 20.5, {"n": 1}),
        RetryWrite(*stale, 30, {"n": 2}),
    ]
    releases = [
        ReleaseWrite(jobs[2].id, jobs[2].lock_token, 30, 5),
        ReleaseWrite(jobs[3].id, jobs[3].lock_token, None, None),
        ReleaseWrite(*stale, 30, 5),
    ]
    assert sorted(store.retry_many(any_conn, queue.tables, retries=retries)) == [jobs[0].id, jobs[1].id]
    assert sorted(store.release_many(any_conn, queue.tables, releases=releases)) == [jobs[2].id, jobs[3].id]
    found = [job_row(any_conn, job.id) for job in jobs]
    assert [row["run_at"] for row in found] == about([10, 20.5, 30, 0])
    assert [(row["attempts"], row["last_error"]) for row in found] == [
        (1, {"n": 0}),
        (1, {"n": 1}),
        (0, None),
        (0, None),
    ]
    assert holds(any_conn) == {"c": (jobs[2].id, True)}
    assert store.retry_many(any_conn, queue.tables, retries=[]) == []
    assert store.release_many(any_conn, queue.tables, releases=[]) == []


def test_a_write_that_says_nothing_of_keys_frees_them(any_conn: sa.Connection, queue: Queue) -> None:
    jobs = [running(any_conn, queue, mutex_keys=[key]) for key in "ab"]
    store.retry_many(any_conn, queue.tables, retries=[RetryWrite(jobs[0].id, jobs[0].lock_token, 0, {})])
    store.release(any_conn, queue.tables, job=jobs[1].lock)
    assert holds(any_conn) == {}


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", None, True, 10**400, timedelta(days=-1)])
def test_delays_that_are_none_are_refused(conn: sa.Connection, queue: Queue, delay: object) -> None:
    job = running(conn, queue)
    with pytest.raises(DefinitionError, match="delay"):
        store.retry(conn, queue.tables, job=job, delay=delay)
