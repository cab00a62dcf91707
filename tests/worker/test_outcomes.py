"""How a handler ends, and what becomes of its job."""

from __future__ import annotations

import asyncio
import json
import linecache
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Backoff, Discard, Job, JobContext, Queue, Retry, Snooze, Worker, store
from tests.support import wait_until

Run = Callable[..., None]
Enqueue = Callable[..., str]
Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]

SOON = Backoff(base=0.0)


class OwnBaseError(BaseException):
    """What a library might raise past `except Exception`."""


def test_success(queue: Queue, run: Run, enqueue: Enqueue, job: Read, sql: Sql) -> None:
    queue.job("good")(lambda payload: "ignored")
    id_ = enqueue("good")
    run()
    done = job(id_)
    assert (done.status, done.attempts, done.lock_token, done.locked_by) == ("completed", 1, None, None)
    assert done.expires_at is not None and done.finished_at is not None
    assert (done.expires_at - done.finished_at).total_seconds() == 86400
    assert sql("SELECT * FROM sqlane_payloads") == []


def test_retries_until_the_attempts_are_used(queue: Queue, run: Run, enqueue: Enqueue, job: Read) -> None:
    attempts: list[int] = []

    @queue.job("bad", max_attempts=3, backoff=SOON)
    def bad(payload: Any, ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(f"try {ctx.attempt}")

    id_ = enqueue("bad", {"kept": 1})
    run()
    failed = job(id_)
    assert attempts == [1, 2, 3]
    assert (failed.status, failed.attempts, failed.payload) == ("failed", 3, {"kept": 1})
    assert failed.last_error is not None
    assert (failed.last_error["type"], failed.last_error["message"]) == ("ValueError", "try 3")
    assert "raise ValueError" in failed.last_error["traceback"]


def test_the_delay_of_a_retry_is_logged_once(
    queue: Queue, run: Run, enqueue: Enqueue, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.job("again")
    def again(payload: Any) -> None:
        raise Retry(delay=3600)

    id_ = enqueue("again")
    with caplog.at_level(logging.INFO, "sqlane_sa.worker"):
        run()
    (said,) = (message for record in caplog.records if "tried again" in (message := record.getMessage()))
    assert said == f"job {id_} (again) is to be tried again in 3600.0 s, attempt 1 of 5: sqlane_sa.Retry"


def test_signals(queue: Queue, run: Run, enqueue: Enqueue, job: Read) -> None:
    @queue.job("signal", failure_job="reaction")
    def signal(payload: str) -> None:
        raise {"retry": Retry(delay=3600), "snooze": Snooze(3600), "discard": Discard("no use")}[payload]

    queue.job("reaction")(lambda payload: None)
    retry, snooze, discard = (job(id_) for id_ in [enqueue("signal", kind) for kind in ("retry", "snooze", "discard")])
    run()
    retry, snooze, discard = job(retry.id), job(snooze.id), job(discard.id)
    assert [(one.status, one.attempts) for one in (retry, snooze, discard)] == [
        ("pending", 1),
        ("pending", 0),
        ("failed", 1),
    ]
    assert (retry.run_at - retry.created_at).total_seconds() > 3500
    assert (snooze.run_at - snooze.created_at).total_seconds() > 3500
    assert discard.last_error is not None and discard.last_error["message"] == "no use"


def test_the_failure_job_gets_the_facts(queue: Queue, run: Run, enqueue: Enqueue) -> None:
    seen: list[dict[str, Any]] = []

    @queue.job("bad", max_attempts=1, failure_job="reaction")
    async def bad(payload: Any) -> None:
        raise ValueError("why")

    queue.job("reaction")(seen.append)
    id_ = enqueue("bad", {"a": 1})
    run()
    (payload,) = seen
    assert payload["error"].pop("traceback")
    assert payload == {
        "id": id_,
        "name": "bad",
        "payload": {"a": 1},
        "attempt": 1,
        "max_attempts": 1,
        "error": {"type": "ValueError", "message": "why", "attempt": 1},
    }


@pytest.mark.parametrize("transactional", [False, True])
def test_what_a_handler_does_to_its_payload_is_its_own(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, transactional: bool
) -> None:
    """The next attempt, the failure job and the stored job have what was enqueued."""
    seen: list[Any] = []

    @queue.job("bad", max_attempts=2, backoff=SOON, failure_job="reaction", transactional=transactional)
    def bad(payload: Any) -> None:
        seen.append(json.loads(json.dumps(payload)))
        payload["a"].append(2)
        payload["b"] = object()
        raise ValueError("why")

    queue.job("reaction")(lambda failed: seen.append(failed["payload"]))
    id_ = enqueue("bad", {"a": [1]})
    run()
    assert seen == [{"a": [1]}] * 3
    assert job(id_).payload == {"a": [1]}


BASE_EXCEPTIONS: list[BaseException] = [
    SystemExit(0),
    SystemExit("x"),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    OwnBaseError(),
    StopIteration(),
    StopAsyncIteration(),
]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_no_exception_ends_the_worker(queue: Queue, run: Run, enqueue: Enqueue, job: Read, kind: str) -> None:
    """J114: each is a failed attempt, and the worker goes on."""

    def leave(payload: int) -> None:
        raise BASE_EXCEPTIONS[payload]

    async def leave_async(payload: int) -> None:
        await asyncio.sleep(0)
        leave(payload)

    queue.job("leave", backoff=lambda attempt: 3600)(leave if kind == "def" else leave_async)
    queue.job("good")(lambda payload: None)
    ids = [enqueue("leave", number) for number in range(len(BASE_EXCEPTIONS))]
    good = enqueue("good", priority=1)
    run(concurrency=1)
    for id_, raised in zip(ids, BASE_EXCEPTIONS, strict=True):
        left = job(id_)
        assert (left.status, left.attempts) == ("pending", 1), raised
        assert left.last_error is not None
        name = type(raised).__name__
        assert name in left.last_error["message"] + left.last_error["type"] or "StopIteration" in str(left.last_error)
    assert job(good).status == "completed"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exit_in_a_handlers_own_thread(queue: Queue, run: Run, enqueue: Enqueue, job: Read) -> None:
    """J114: it ends that thread alone."""

    @queue.job("thread")
    def thread(payload: Any) -> None:
        other = threading.Thread(target=sys.exit)
        other.start()
        other.join()

    id_ = enqueue("thread")
    run()
    assert job(id_).status == "completed"


def test_a_coroutine_from_a_def_handler_is_an_error(queue: Queue, run: Run, enqueue: Enqueue, job: Read) -> None:
    async def inner() -> None: ...

    queue.job("wrapped", max_attempts=1)(lambda payload: inner())
    id_ = enqueue("wrapped")
    run()
    error = job(id_).last_error
    assert error is not None and "async def" in error["message"]


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
def test_what_an_async_handler_has_not_begun_is_no_success(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, kind: str
) -> None:
    """A forgotten `await`, or a loop over it."""

    async def coroutine() -> None: ...

    async def async_generator() -> Any:
        yield 1

    made = {"coroutine": coroutine, "generator": lambda: (n for n in "ab"), "async generator": async_generator}[kind]

    @queue.job("wrapped", max_attempts=1)
    async def wrapped(payload: Any) -> Any:
        return made()

    queue.job("wrapped def", max_attempts=1)(lambda payload: made())
    ids = [enqueue("wrapped"), enqueue("wrapped def")]
    run()
    for id_ in ids:
        error = job(id_).last_error
        assert error is not None and f"returned a {kind.rpartition(' ')[2]}" in error["message"]


@pytest.mark.parametrize("name", ["NUL", "NUL in the class", "NUL in the source", "huge", "unprintable"])
def test_errors_that_are_hard_to_store(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J109, J111: NUL characters and lone surrogates replaced, the size capped; the failure job all the same."""

    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    # A traceback shows the line of the source as it is in the cache.
    monkeypatch.setitem(linecache.cache, "nul.py", (1, None, ["raise ValueError('\0')\n"], "nul.py"))
    source = compile("raise ValueError('in a file of its own')", "nul.py", "exec")
    errors = {
        "NUL": ValueError("a\0b\ud800"),
        "NUL in the class": type("E", (Exception,), {"__module__": "a\0b"})("a"),
        "NUL in the source": None,
        "huge": ValueError("x" * 200_000_000 if name == "huge" else ""),
        "unprintable": UnprintableError(),
    }

    @queue.job("bad", max_attempts=2, backoff=SOON, failure_job="reaction")
    def bad(payload: Any) -> None:
        raise errors[name] or exec(source)

    reactions: list[Any] = []
    queue.job("reaction")(reactions.append)
    id_ = enqueue("bad")
    run()
    failed = job(id_)
    assert (failed.status, failed.attempts) == ("failed", 2)
    assert len(json.dumps(failed.last_error)) < 100_000
    assert "\0" not in "".join(str(value) for value in (failed.last_error or {}).values())
    assert [reaction["id"] for reaction in reactions] == [id_]


@pytest.mark.parametrize(
    ("condition", "code", "status", "attempts"),
    [
        ("NEW.last_error IS NOT NULL", "P0001", "failed", 1),
        ("NEW.last_error ->> 'message' LIKE '%poison%'", "45000", "failed", 1),
        ("NEW.status = 'failed'", "P0001", "running", 0),
        ("NEW.last_error IS NOT NULL AND nextval('tries') = 1", "MY001", "failed", 1),
    ],
    ids=["any error text", "this error text", "any failure", "error text once"],
)
def test_a_result_that_cannot_be_stored(
    queue: Queue,
    work: Callable[..., Any],
    enqueue: Enqueue,
    job: Read,
    sql: Sql,
    condition: str,
    code: str,
    status: str,
    attempts: int,
) -> None:
    """J111: a plain failure in its place, or one without a word, or the lease; the neighbours are stored."""
    sql("CREATE SEQUENCE tries")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {condition} THEN RAISE EXCEPTION 'refused by the trigger' USING ERRCODE = '{code}'; END IF;"
        " RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")

    @queue.job("bad", max_attempts=1)
    def bad(payload: Any) -> None:
        raise ValueError("poison")

    queue.job("good")(lambda payload: None)
    ids = [enqueue("good") for _ in range(5)]
    odd = enqueue("bad")
    ids += [enqueue("good") for _ in range(5)]
    worker = work(lease=60.0, concurrency=20)
    wait_until(lambda: all(job(id_).status == "completed" for id_ in ids))
    wait_until(lambda: len(worker._parts.jobs) == 0)
    assert (job(odd).status, job(odd).attempts) == (status, attempts)
    later = enqueue("good")
    wait_until(lambda: job(later).status == "completed")


def test_a_failure_that_is_refused_for_ever_ends_by_stalls(
    engine: sa.Engine, queue: Queue, work: Callable[..., Any], enqueue: Enqueue, job: Read, sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """J111: the lease path. Each run whose result cannot be stored is a stall, up to the last; then the sweep's own
    write is refused, round after round, nothing starts any more, and the neighbours are swept. Once the database takes
    the write, the job has failed."""
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.status = 'failed' THEN RAISE EXCEPTION 'refused by the trigger'; END IF; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    runs: list[int] = []

    @queue.job("bad", max_attempts=1, max_stalls=2, mutex_keys=["k"], failure_job="reaction")
    def bad(payload: Any, ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        raise ValueError("poison")

    reactions: list[Any] = []
    queue.job("reaction")(reactions.append)
    queue.job("good")(lambda payload: None)
    odd = enqueue("bad")
    work(lease=0.5)

    def refusals() -> int:
        said = [record.getMessage() for record in caplog.records]
        return sum(f"job {odd} stalled and cannot be recovered" in one for one in said)

    wait_until(lambda: refusals() >= 1)
    with engine.begin() as conn:
        stale = queue.enqueue(conn, "good").id
        store.claim(conn, queue.tables, candidate_ids=[stale], lock_token="dead", locked_by="dead", lease=0.001)
    wait_until(lambda: job(stale).status == "completed")
    assert job(stale).stalls == 1
    before = refusals()
    wait_until(lambda: refusals() >= before + 2)
    assert (job(odd).status, job(odd).attempts, job(odd).stalls) == ("running", 0, 2)
    assert sql("SELECT job_id, held_until FROM sqlane_mutexes") == [(odd, None)]
    assert runs == [1, 1, 1]
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    wait_until(lambda: reactions)
    failed = job(odd)
    assert (failed.status, failed.attempts, failed.stalls, len(runs)) == ("failed", 0, 3, 3)
    assert failed.last_error is not None and failed.last_error["type"].endswith("StalledError")


def test_a_result_whose_fallback_meets_a_lock_waits_as_it_is(
    engine: sa.Engine, queue: Queue, work: Callable[..., Any], enqueue: Enqueue, job: Read, sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """J111, with the row locked just before the last fallback, the one without an error text. Once the row is free and
    the database takes the failure, it has its own error."""
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.status = 'failed' THEN RAISE EXCEPTION 'refused by the trigger'; END IF; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")

    @queue.job("bad", max_attempts=1)
    def bad(payload: Any) -> None:
        raise ValueError("poison")

    odd = enqueue("bad")
    with engine.connect() as other:

        class LockAfterTheFirstFallback(logging.Filter):
            def filter(self, record: logging.LogRecord) -> bool:
                if "nor could" in record.getMessage() and not other.in_transaction():
                    other.execute(sa.text("SELECT FROM sqlane_jobs FOR NO KEY UPDATE"))
                return True

        caplog.handler.addFilter(LockAfterTheFirstFallback())
        work(lease=60.0)
        wait_until(lambda: f"another transaction has locked, the first for job {odd}" in caplog.text)
        caplog.handler.filters.clear()
        sql("ALTER TABLE sqlane_jobs DISABLE TRIGGER refuse")
    wait_until(lambda: job(odd).status == "failed")
    failed = job(odd).last_error
    assert failed is not None and (failed["type"], failed["message"]) == ("ValueError", "poison")


@pytest.mark.parametrize(
    "backoff",
    [
        lambda n: float("inf"),
        lambda n: float("nan"),
        lambda n: -1,
        lambda n: None,
        lambda n: 1 / 0,
        Backoff(base=10, factor=10),
    ],
    ids=["inf", "nan", "negative", "None", "raises", "steep"],
)
def test_the_delay_is_sane_whatever_the_backoff(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, sql: Sql, backoff: Any
) -> None:
    """H85: also with attempts that a power of floats cannot hold."""

    @queue.job("bad", max_attempts=2000, backoff=backoff)
    def bad(payload: Any) -> None:
        raise ValueError

    ids = [enqueue("bad") for _ in range(5)]
    for id_, attempts in zip(ids, (15, 40, 64, 1030, 1999), strict=True):
        sql("UPDATE sqlane_jobs SET attempts = :n WHERE id = :id", n=attempts, id=id_)
    run()
    for id_ in ids[:-1]:
        retried = job(id_)
        assert retried.status == "pending"
        assert 0 < (retried.run_at - retried.created_at).total_seconds() < 8 * 86400
    assert job(ids[-1]).status == "failed"


def test_odd_rows_are_isolated(
    engine: sa.Engine, queue: Queue, run: Run, enqueue: Enqueue, job: Read, sql: Sql, caplog: Any
) -> None:
    """A5, A14, A24: attempts used up, a payload that nobody can read, that is gone or of another kind; the neighbours
    run, and the stats count all of them."""

    @queue.job("good", backoff=lambda attempt: 3600)
    def good(payload: dict[str, Any]) -> None:
        payload["n"]

    used, missing, *poisoned = (enqueue("good", {"n": 0}) for _ in range(7))
    neighbours = [enqueue("good", {"n": n}) for n in range(10)]
    sql("UPDATE sqlane_jobs SET attempts = max_attempts WHERE id = :id", id=used)
    sql("DELETE FROM sqlane_payloads WHERE id = :id", id=missing)
    for id_, payload in zip(
        poisoned, ("9" * 5000, "[" * 5000 + "]" * 5000, '"just text"', "null", "[1, 2]"), strict=True
    ):
        sql("UPDATE sqlane_payloads SET payload = CAST(:payload AS json) WHERE id = :id", payload=payload, id=id_)
    with engine.connect() as conn:
        assert queue.stats(conn)["good"].pending == 17
    run()
    assert [job(id_).status for id_ in neighbours] == ["completed"] * 10
    assert job(used).status == "failed"
    assert f"job {used} (good): 5 of 5 attempts were already used" in caplog.text
    for id_ in (missing, *poisoned):
        assert (job(id_).status, job(id_).attempts) == ("pending", 1)
    for id_ in poisoned[-3:]:  # the handler's own error
        assert (job(id_).last_error or {})["type"] == "TypeError"
    assert sql("SELECT count(*) FROM sqlane_jobs WHERE status = 'running'") == [(0,)]
    with engine.connect() as conn:
        stats = queue.stats(conn)["good"]
    assert (stats.pending, stats.running, stats.failed) == (6, 0, 1)


def test_names_without_a_handler_are_left_alone(
    engine: sa.Engine, queue: Queue, run: Run, enqueue: Enqueue, job: Read
) -> None:
    """N145: a thousand at the head do not hold up those behind; they show in the stats, and wait for a worker that
    knows them."""
    queue.define("new.job")
    queue.job("good")(lambda payload: None)
    with engine.begin() as conn:
        strange = [one.id for one in queue.enqueue_many(conn, [queue.new("new.job", priority=-1)] * 1000)]
    good = [enqueue("good") for _ in range(20)]
    run()
    assert {job(id_).status for id_ in good} == {"completed"}
    with engine.connect() as conn:
        stats = queue.stats(conn)
    assert (stats["new.job"].pending, stats["new.job"].due, stats["new.job"].running) == (1000, 1000, 0)
    assert {(job(id_).status, job(id_).attempts) for id_ in strange[::100]} == {("pending", 0)}
    newer = Queue()
    ran: list[str] = []

    @newer.job("new.job")
    def new_job(payload: Any, ctx: JobContext) -> None:
        ran.append(ctx.id)

    with pytest.raises(LookupError, match="no job is named"):
        newer.new("good")
    Worker(engine, newer).run_until_idle()
    assert sorted(ran) == sorted(strange)
    assert {(job(id_).status, job(id_).attempts) for id_ in strange} == {("completed", 1)}
