"""insert_jobs: rows, payloads and places in lines; order, chunks and given ids."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store.insert import CHUNK_CHARS, CHUNK_ROWS
from tests.store.steps import about, add, add_many, candidates, claim, job_row, lines, new, rows, run, statements


def insert(conn: sa.Connection, queue: Queue, *jobs: store.insert_jobs) -> list:
    return store.insert_jobs(conn, queue.tables, jobs=jobs)


def test_a_job_has_the_facts_of_its_definition(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define(
        "n",
        priority=-3,
        max_attempts=7,
        max_stalls=2,
        failure_job="sorry",
        completed_retention=1.5,
        failed_retention=None,
        mutex_keys=lambda payload: ["b", payload["key"]],
    )
    row = job_row(any_conn, add(any_conn, queue, "n", {"key": "a"}))
    assert (row["job_name"], row["status"], row["priority"]) == ("n", "pending", -3)
    assert (row["attempts"], row["max_attempts"], row["stalls"], row["max_stalls"]) == (0, 7, 0, 2)
    assert (row["mutex_keys"], row["failure_job"]) == (["a", "b"], "sorry")
    assert (row["completed_retention_ms"], row["failed_retention_ms"]) == (1500, None)
    assert [row[name] for name in ("lock_token", "locked_by", "locked_until", "started_at", "finished_at")] == [
        None
    ] * 5


def test_results_are_in_input_order_and_ids_increase(any_conn: sa.Connection, queue: Queue) -> None:
    ids = add_many(any_conn, queue, 50)
    assert ids == sorted(set(ids))
    assert rows(any_conn, "SELECT id FROM sqlane_jobs ORDER BY run_at, id") == ids


@pytest.mark.parametrize(("n", "chunks"), [(0, 0), (1, 1), (CHUNK_ROWS, 1), (CHUNK_ROWS + 1, 2), (5000, 3)])
def test_a_chunk_is_one_statement(conn: sa.Connection, queue: Queue, n: int, chunks: int) -> None:
    with statements(conn) as sent:
        ids = add_many(conn, queue, n)
    assert len(sent) == chunks
    assert rows(conn, "SELECT id FROM sqlane_jobs ORDER BY run_at, id") == ids
    assert rows(conn, "SELECT count(*) FROM sqlane_payloads") == [n]


def test_a_chunk_ends_before_it_grows_too_large(conn: sa.Connection, queue: Queue) -> None:
    half = "x" * (CHUNK_CHARS // 2)
    with statements(conn) as sent:
        insert(conn, queue, *[new(queue, "n", half) for _ in range(3)])
    assert len(sent) == 3
    assert rows(conn, "SELECT count(*) FROM sqlane_payloads") == [3]


def test_a_given_id_is_created_once(any_conn: sa.Connection, queue: Queue) -> None:
    assert insert(any_conn, queue, new(queue, "n", 1, id="one")) == [("one", True)]
    assert insert(any_conn, queue, new(queue, "other", 2, id="one", mutex_keys=["k"])) == [("one", False)]
    assert rows(any_conn, "SELECT job_name, mutex_keys FROM sqlane_jobs") == [("n", None)]
    assert store.read_payloads(any_conn, queue.tables, ids=["one"]) == {"one": 1}
    assert lines(any_conn) == []


def test_a_batch_mixes_given_and_new_ids(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, "n", "old", id="known")
    jobs = [new(queue, "n", i, id=id) for i, id in enumerate(["a", None, "known", "a", None, "b"])]
    results = insert(any_conn, queue, *jobs)
    assert [result.created for result in results] == [True, True, False, False, True, True]
    assert [results[i].id for i in (0, 2, 3, 5)] == ["a", "known", "a", "b"]
    assert results[1].id < results[4].id
    payloads = store.read_payloads(any_conn, queue.tables, ids=[result.id for result in results])
    assert payloads == {"a": 0, results[1].id: 1, "known": "old", results[4].id: 4, "b": 5}


def test_an_id_repeated_in_a_later_chunk_is_not_created_again(conn: sa.Connection, queue: Queue) -> None:
    ids = [str(i) for i in range(CHUNK_ROWS)] + ["0", "new"]
    results = insert(conn, queue, *[new(queue, "n", id=id) for id in ids])
    assert [one.created for one in results] == [True] * CHUNK_ROWS + [False, True]


def test_a_payload_left_over_from_a_deleted_job_is_replaced(any_conn: sa.Connection, queue: Queue) -> None:
    run(any_conn, "INSERT INTO sqlane_payloads (id, payload) VALUES ('one', '\"left over\"')")
    assert insert(any_conn, queue, new(queue, "n", "new", id="one")) == [("one", True)]
    assert store.read_payloads(any_conn, queue.tables, ids=["one"]) == {"one": "new"}


def test_a_job_that_is_due_now_is_due_at_once(any_conn: sa.Connection, queue: Queue) -> None:
    # A time that was rounded up would fail here in half of the rounds.
    for _ in range(20):
        id = add(any_conn, queue)
        assert candidates(any_conn, queue) == [id]
        assert claim(any_conn, queue, id)


@pytest.mark.parametrize("micros", [0, 1, 499, 500, 999])
def test_run_at_is_cut_to_the_millisecond(any_conn: sa.Connection, queue: Queue, micros: int) -> None:
    moment = datetime(2031, 2, 3, 4, 5, 6, 789_000 + micros, tzinfo=UTC)
    id = add(any_conn, queue, run_at=moment)
    assert rows(any_conn, "SELECT run_at FROM sqlane_jobs WHERE id = :id", id=id) == [
        moment.replace(microsecond=789_000)
    ]


def test_a_delay_counts_from_the_insert(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [add(any_conn, queue, delay=delay) for delay in (90, timedelta(minutes=1, milliseconds=250), 0.004)]
    seconds = [job_row(any_conn, id)["run_at"] for id in ids]
    assert seconds == about([90, 60.25, 0.004])
    assert rows(any_conn, "SELECT round(extract(epoch FROM run_at - created_at) * 1000) FROM sqlane_jobs LIMIT 1") == [
        pytest.approx(90_000, abs=1)
    ]


def test_a_pending_job_stands_in_the_line_of_each_of_its_keys(any_conn: sa.Connection, queue: Queue) -> None:
    first = add(any_conn, queue, "n", mutex_keys=["b", "a", "b"])
    second = add(any_conn, queue, "m", mutex_keys=["a"])
    add(any_conn, queue, "n")
    assert lines(any_conn) == [("a", first), ("a", second), ("b", first)]
    assert rows(any_conn, "SELECT count(*) FROM sqlane_waits AS w NATURAL JOIN sqlane_jobs AS j(job_id)") == [3]


ODD_TEXTS = [
    '"',
    "\\",
    "{}",
    "NULL",
    "null",
    "a,b",
    " ",
    "%s",
    "%(a)s",
    ":p",
    "$1",
    "é",
    "\U0001f600",
    "'",
    "\n",
    "{0}",
]


def test_any_text_can_be_a_key_a_name_and_an_id(any_conn: sa.Connection, queue: Queue) -> None:
    for text in ODD_TEXTS:
        assert add(any_conn, queue, text, text, mutex_keys=[text, "z"], id=text) == text
        job = store.get(any_conn, queue.tables, id=text)
        assert job is not None
        assert (job.id, job.name, job.payload, set(job.mutex_keys or ())) == (text, text, text, {text, "z"})
    assert {key for key, _ in lines(any_conn)} == {*ODD_TEXTS, "z"}


def test_a_role_that_may_only_insert_can_enqueue(conn: sa.Connection, queue: Queue) -> None:
    run(conn, "CREATE ROLE sqlane_producer")
    run(conn, "GRANT INSERT ON sqlane_jobs, sqlane_payloads, sqlane_waits TO sqlane_producer")
    run(conn, "GRANT SELECT ON sqlane_sleepers TO sqlane_producer")
    run(conn, "SET LOCAL ROLE sqlane_producer")
    id = add(conn, queue, mutex_keys=["k"])
    run(conn, "RESET ROLE")
    assert lines(conn) == [("k", id)]
