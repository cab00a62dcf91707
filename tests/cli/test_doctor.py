"""`sqlane doctor`: a verdict on each figure, and why and what to do where it is bad."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker, migrations, store
from sqlane_sa.cli.doctor import HEADINGS
from sqlane_sa.cli.findings import LONG_MS, Finding, expired, failures, findings, unserved, workers
from sqlane_sa.cli.table import show_table
from sqlane_sa.store import FailedCount, Overdue
from sqlane_sa.store.backlog import OVERDUE
from sqlane_sa.values.health import Health, Snapshot, TableHealth
from tests.cli.conftest import Answer, Sqlane, problem
from tests.support import wait_until

TOPICS = ["revision", "workers", "names", "failures", "expired jobs"]
TOPICS += ["snapshots", "autovacuum", "dead rows", "indexes", "notifications"]
READER = Snapshot("session", None, 7, "ada", "psql", "idle in transaction", 1000, 3)
JOBS = TableHealth("sqlane_jobs", 100, 50, 400, 100, 8192, 8192, 1000, 1000)
WELL = Health(None, (JOBS,), (), 0.0, autovacuum=True, sees_others=True)
HOUR = 3_600_000
CANCEL_DELETES = """
CREATE FUNCTION cancel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE query_canceled; END $$;
CREATE TRIGGER cancel BEFORE DELETE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION cancel()"""


def bad(health: Health, queue: Queue | None = None) -> list[Finding]:
    return [finding for finding in findings(health, (queue or Queue()).tables) if not finding.ok]


def lines(answer: Answer) -> list[str]:
    """Those of the findings."""
    return answer.out.split("\n\n")[1].splitlines()


def break_index(engine: sa.Engine) -> None:
    """An index that a build did not finish."""
    with engine.begin() as conn:
        queue = Queue()
        queue.define("n")
        queue.enqueue_many(conn, [queue.new("n")] * 2)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        with pytest.raises(sa.exc.IntegrityError):
            conn.exec_driver_sql("CREATE UNIQUE INDEX CONCURRENTLY sqlane_jobs_mine ON sqlane_jobs (job_name)")


def test_all_is_well(sqlane: Sqlane, database_url: str) -> None:
    answer = sqlane("doctor", "--url", database_url)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("sqlane_* in schema public: nothing to look at\n\n")
    assert [line[:21].split(maxsplit=1) for line in lines(answer)] == [["ok", f"{topic:15}"] for topic in TOPICS]
    heading, *rows = answer.out.split("\n\n")[2].splitlines()
    assert " ".join(heading.split()) == "table live rows dead rows HOT size indexes vacuumed analyzed"
    assert " ".join(row.split()[0].removeprefix("sqlane_") for row in rows) == "jobs payloads mutexes waits sleepers"
    assert all(len(line) <= 80 for line in answer.out.splitlines())


def test_what_is_wrong_is_said_with_the_next_step(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    break_index(engine)
    answer = within("doctor", "--url", database_url)
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.startswith("sqlane_* in schema public: 1 to look at\n\n")
    at = next(n for n, line in enumerate(lines(answer)) if line.startswith("look"))
    said, *more = lines(answer)[at : at + 4]
    assert said.startswith("look  indexes        sqlane_jobs_mine is invalid: a CREATE or REINDEX")
    assert all(line.startswith(" " * 21) for line in more[:-1])
    assert " " * 21 + "REINDEX INDEX CONCURRENTLY sqlane_jobs_mine;" in more


def test_json(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    assert json.loads(within("doctor", "--json", "--url", database_url).out)["ok"] is True
    break_index(engine)
    answer = within("doctor", "--json", "--url", database_url)
    found = json.loads(answer.out)
    assert (answer.code, found["ok"]) == (1, False)
    assert found["invalid_indexes"] == ["sqlane_jobs_mine"]
    assert [one["topic"] for one in found["findings"]] == TOPICS
    assert found["tables"][0].keys() >= {"name", "dead_rows", "hot_share", "bytes", "vacuum_age_ms"}
    assert found["snapshot"] is None


def test_the_steps_are_statements_that_work(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    """The one for the index, in a schema whose name needs quotes; and that for the snapshot ends its session."""
    queue = Queue("a b", 'Our "Jobs"')
    migrations.apply(engine, queue)
    place = ("--prefix", "a b", "--schema", 'Our "Jobs"', "--json", "--url", database_url)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid::regclass::text LIKE '%%_expires\"'"
        )
    found = json.loads(within("doctor", *place).out)
    [step] = [one["step"] for one in found["findings"] if not one["ok"]]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql(step)
    assert within("doctor", *place).code == 0
    with engine.connect() as reader:
        pid = reader.scalar(sa.text("SELECT pg_backend_pid()"))
        step = bad(WELL._replace(snapshot=READER._replace(pid=pid, age_ms=HOUR, transactions=10**6)))[0].step
        with engine.connect() as conn:
            assert conn.scalar(sa.text("SELECT " + step.partition("SELECT ")[2])) is True
        with pytest.raises(sa.exc.OperationalError):
            wait_until(lambda: reader.scalar(sa.text("SELECT 0")))


def test_a_queue_by_its_module(within: Sqlane, app: Callable[..., None], database_url: str, engine: sa.Engine) -> None:
    app('"shop_", "Our Jobs"')
    migrations.apply(engine, Queue("shop_", "Our Jobs"))
    assert within("doctor", "app:queue", "--url", database_url).out.startswith("shop_* in schema Our Jobs: nothing")
    said = problem(within("doctor", "app:queue", "--prefix", "x_", "--url", database_url))
    assert said.startswith("--prefix x_ contradicts app:queue")


def test_due_jobs_that_no_worker_takes(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    queue = Queue()
    queue.define("n")
    later = "none is seen, and no job waits for one"
    with engine.begin() as conn:
        queue.enqueue(conn, "n", delay=3600)
    assert later in within("doctor", "--url", database_url).out
    with engine.begin() as conn:
        queue.enqueue(conn, "n")
        conn.exec_driver_sql("UPDATE sqlane_jobs SET run_at = run_at - interval '125 min'")
    answer = within("doctor", "--url", database_url)
    assert answer.code == 1
    assert answer.out.startswith("sqlane_* in schema public: 1 to look at\n\n")
    said = " ".join(" ".join(lines(answer)[1:5]).split())
    assert said.startswith(
        "look workers jobs of one name are due, the oldest for 2 h 5 min, and no worker is seen: none"
    )
    assert "start one: sqlane worker MODULE:QUEUE" in said


@pytest.mark.parametrize("how", ["asleep", "running"])
def test_a_worker_that_is_seen(within: Sqlane, database_url: str, engine: sa.Engine, how: str) -> None:
    queue = Queue()
    queue.define("n")
    with engine.begin() as conn:
        ids = [queue.enqueue(conn, "n").id for _ in range(2)]
        conn.exec_driver_sql("UPDATE sqlane_jobs SET run_at = run_at - interval '4 min'")
        if how == "asleep":
            store.fall_asleep(conn, queue.tables, worker_id="w", duration=60)
        else:
            store.claim(conn, queue.tables, candidate_ids=ids[:1], lock_token="t", locked_by="w", lease=60)
    answer = within("doctor", "--url", database_url)
    assert (answer.code, "one is at work" in answer.out) == (0, True)
    with engine.begin() as conn:
        conn.exec_driver_sql("UPDATE sqlane_sleepers SET asleep_until = now()")
        conn.exec_driver_sql("UPDATE sqlane_jobs SET locked_until = now() WHERE status = 'running'")
    assert "no worker is seen" in " ".join(within("doctor", "--url", database_url).out.split())


def test_a_name_that_the_workers_do_not_serve(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    """One is at work on another name; until a job of this one runs."""
    queue = Queue()
    for name in ("served", "left alone"):
        queue.define(name)
    with engine.begin() as conn:
        served, alone = (queue.enqueue_many(conn, [queue.new(name)] * 2) for name in queue.definitions)
        conn.exec_driver_sql("UPDATE sqlane_jobs SET run_at = run_at - interval '6 min'")
        store.claim(conn, queue.tables, candidate_ids=[served[0].id], lock_token="t", locked_by="w", lease=60)
    answer = within("doctor", "--url", database_url)
    assert answer.code == 1
    assert answer.out.startswith("sqlane_* in schema public: 1 to look at\n\n")
    said = " ".join(answer.out.split())
    assert "look names jobs of left alone are due, the oldest for 6 min" in said
    assert "and none of them runs: the workers do not serve that name" in said
    assert "serve it: sqlane worker MODULE:QUEUE --names 'left alone'" in said
    with engine.begin() as conn:
        store.claim(conn, queue.tables, candidate_ids=[alone[0].id], lock_token="t2", locked_by="w", lease=60)
    assert within("doctor", "--url", database_url).code == 0


def test_names_whose_jobs_fail(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    queue = Queue()
    for name in ("fails", "also"):
        queue.define(name)
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("also"), *[queue.new("fails")] * 100])
        failed = "UPDATE sqlane_jobs SET status = 'failed', finished_at = statement_timestamp() - interval '{}'"
        conn.exec_driver_sql(failed.format("61 min"))
    assert "no jobs failed for good in the last hour" in within("doctor", "--url", database_url).out
    with engine.begin() as conn:
        conn.exec_driver_sql(failed.format("59 min"))
    answer = within("doctor", "--url", database_url)
    said = " ".join(answer.out.split())
    assert answer.code == 1
    assert "look failures 100 jobs of fails failed for good in the last hour" in said
    assert "look at their errors: sqlane failed --names fails" in said
    with engine.begin() as conn:
        store.retry_failed(conn, queue.tables, ids=store.failed_ids(conn, queue.tables, name="fails", limit=1))
    assert "100 jobs failed for good in the last hour" in within("doctor", "--url", database_url).out


def test_what_is_said_of_names_has_a_limit() -> None:
    due = {f"n{n}": -LONG_MS - n for n in range(7)}
    found = list(unserved(due | {"young": 1 - LONG_MS, "served": -HOUR}, {"served"}))
    assert [one.said.split()[2] for one in found] == ["n6", "n5", "n4", "n3", "n2"]
    assert [one.said.endswith("none of them runs; and of 2 other names") for one in found] == [True] + [False] * 4
    assert [one.ok for one in unserved({"young": 1 - LONG_MS}, ())] == [True]
    counts = [FailedCount(f"n{n}", 99 + n) for n in range(8)]
    assert [one.said.split()[0] for one in failures(counts)] == ["106", "105", "104", "103", "102"]
    assert next(failures([FailedCount("n", 1000)])).said.startswith("at least 1,000 jobs of n failed")
    assert [one.said for one in failures(counts[:1])] == ["99 jobs failed for good in the last hour"]


def test_expired_jobs_that_no_sweeper_deletes(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    """Not those that expired just now, nor one that is kept for ever."""
    queue = Queue()
    queue.define("n")
    expires = "UPDATE sqlane_jobs SET expires_at = statement_timestamp() - interval '{}' WHERE id = '{}'"
    with engine.begin() as conn:
        ids = [queue.enqueue(conn, "n").id for _ in range(4)]
        conn.exec_driver_sql("UPDATE sqlane_jobs SET status = 'failed'")
        for id_, past in zip(ids, ("59 min", "59 min", "-1 h"), strict=False):
            conn.exec_driver_sql(expires.format(past, id_))
        assert store.find_overdue(conn, queue.tables, limit=9).jobs == 2
    assert "none is left for long" in within("doctor", "--url", database_url).out
    with engine.begin() as conn:
        conn.exec_driver_sql(expires.format("125 min", ids[0]))
        assert store.find_overdue(conn, queue.tables, limit=1).jobs == 1
    answer = within("doctor", "--url", database_url)
    said = " ".join(answer.out.split())
    assert answer.code == 1
    assert "look expired jobs 2 are past the time to be kept, the oldest for 2 h 5 min: no worker sweeps" in said
    with engine.begin() as conn:
        store.delete_expired(conn, queue.tables, limit=9)
    assert within("doctor", "--url", database_url).code == 0


def test_sweeps_that_fail_again_and_again(
    within: Sqlane, database_url: str, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """D53: a worker is at work, and says so in its log; the doctor's exit code tells those who do not read it."""
    queue = Queue()
    queue.job("n")(lambda payload: None)
    with engine.begin() as conn:
        queue.enqueue(conn, "n")
        conn.exec_driver_sql(
            "UPDATE sqlane_jobs SET status = 'completed', expires_at = statement_timestamp() - interval '2 h'"
        )
        conn.exec_driver_sql(CANCEL_DELETES)
    with Worker(engine, queue, sweep_interval=0.05):
        wait_until(lambda: "sweeper: OperationalError" in caplog.text)
        answer = within("doctor", "--url", database_url)
        assert answer.code == 1
        assert "1 to look at" in answer.out and "look  expired jobs" in answer.out
        with engine.begin() as conn:
            conn.exec_driver_sql("DROP TRIGGER cancel ON sqlane_jobs")
        wait_until(lambda: "sweeper: works again" in caplog.text)
        assert within("doctor", "--url", database_url).code == 0


def test_expired_jobs_are_looked_at_by_index(engine: sa.Engine) -> None:
    with engine.begin() as conn:
        store.pin_plans(conn)
        plan = conn.execute(sa.text(f"EXPLAIN {OVERDUE.on(Queue().tables)}"), {"max_rows": 9}).scalars()
        assert "sqlane_jobs_expires" in "".join(plan)


def test_what_is_counted_has_a_limit() -> None:
    overdue = [Overdue(0, 0), Overdue(1, HOUR - 1), Overdue(1, HOUR), Overdue(10_000, HOUR)]
    assert [expired(one).ok for one in overdue] == [True, True, False, False]
    assert [expired(one).said.partition(" past")[0] for one in overdue[2:]] == ["1 is", "at least 10,000 are"]


def test_what_is_due_is_said_by_names() -> None:
    assert [workers(delays, seen=False).ok for delays in ([], [10**6], [-4_999], [-5_000])] == [True, True, True, False]
    assert workers([-5_000, -61_000, 7], seen=False).said.startswith(
        "jobs of 2 names are due, the oldest for 1 min 1 s"
    )
    assert workers([-5_000], seen=True).ok


def test_tables_that_are_not_there(within: Sqlane, empty_url: str) -> None:
    answer = within("doctor", "--url", empty_url)
    assert (answer.code, answer.err) == (1, "")
    assert "look  revision       " in answer.out
    assert "`sqlane migrate`" in answer.out
    assert "live rows" not in answer.out
    assert [line[6:21].strip() for line in lines(answer) if line[:4] == "ok  "] == [
        "snapshots",
        "autovacuum",
        "notifications",
    ]
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    answer = within("doctor", "--prefix", "shop_", "--schema", "Our Jobs", "--url", empty_url)
    assert "`sqlane migrate --prefix shop_ --schema 'Our Jobs'`" in answer.out


def test_it_waits_for_a_lock_only_a_moment(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("LOCK TABLE sqlane_jobs")
        assert "somebody holds a lock on a table of the queue" in problem(within("doctor", "--url", database_url))


def test_a_role_that_sees_little_is_told_so(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE ROLE sqlane_doctor_test LOGIN PASSWORD 'p'")
        conn.exec_driver_sql("GRANT SELECT ON sqlane_version TO sqlane_doctor_test")
    try:
        url = engine.url.set(username="sqlane_doctor_test", password="p").render_as_string(hide_password=False)
        answer = within("doctor", "--url", url)
        assert (answer.code, answer.err) == (0, "")
        assert "note  rights         this user may not see how old" in answer.out
    finally:
        with engine.begin() as conn:
            conn.exec_driver_sql("DROP OWNED BY sqlane_doctor_test")
            conn.exec_driver_sql("DROP ROLE sqlane_doctor_test")


def test_what_others_call_themselves_is_escaped(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    """A user's name may hold what a terminal would obey; so may a prepared transaction's."""
    said = bad(
        WELL._replace(snapshot=Snapshot("prepared transaction", "a\x1b[2J'", None, "b", None, None, HOUR, 10**6))
    )
    assert "\x1b[2J''" in said[0].step
    role = "sqlane \x1b[31mred"
    with engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'p'")
    other = sa.create_engine(engine.url.set(username=role, password="p"), poolclass=sa.NullPool)
    try:
        with other.connect() as conn:
            conn.exec_driver_sql("SELECT pg_current_xact_id()")
            answer = within("doctor", "--url", database_url)
    finally:
        with engine.begin() as conn:
            conn.exec_driver_sql(f'DROP ROLE "{role}"')
    assert r"sqlane \x1b[31mred" in answer.out
    assert "\x1b" not in answer.out
    assert answer.code == 0


@pytest.mark.parametrize(
    ("held", "is_bad"),
    [
        (None, False),
        (READER, False),
        (READER._replace(age_ms=HOUR), False),
        (READER._replace(transactions=10_000), False),
        (READER._replace(age_ms=HOUR, transactions=10_000), True),
        (READER._replace(transactions=2_000_000), True),
        (READER._replace(age_ms=None, transactions=10_000), False),
        (READER._replace(age_ms=None, transactions=200_000), True),
    ],
)
def test_a_snapshot_is_bad_when_it_is_old_and_holds_something_back(held: Snapshot | None, is_bad: bool) -> None:
    assert bool(bad(WELL._replace(snapshot=held))) is is_bad


@pytest.mark.parametrize(
    ("held", "said", "step"),
    [
        (READER, "by the session (pid 7, user ada, psql, idle in transaction)", "SELECT pg_terminate_backend(7);"),
        (READER._replace(kind="standby"), "by the standby (pid 7,", "hot_standby_feedback = off"),
        (READER._replace(kind="replication slot", name="s"), "by the replication slot s (", "hot_standby_feedback"),
        (
            Snapshot("replication slot", "s", None, None, None, None, None, 1),
            "by the replication slot s",
            "pg_drop_replication_slot('s')",
        ),
        (
            Snapshot("prepared transaction", "it's", None, "ada", None, None, 1, 1),
            "by the prepared transaction it's (user ada)",
            "ROLLBACK PREPARED 'it''s';",
        ),
    ],
)
def test_each_holder_has_its_own_way_out(held: Snapshot, said: str, step: str) -> None:
    [finding] = bad(WELL._replace(snapshot=held._replace(transactions=3_000_000)))
    assert said in finding.said
    assert "over 3,000,000 transactions" in finding.said
    assert step in finding.step


@pytest.mark.parametrize(
    ("live", "dead", "vacuumed", "is_bad"),
    [
        (0, 9_000, HOUR, False),
        (0, 11_000, HOUR, True),
        (0, 11_000, 1000, False),
        (0, 11_000, None, False),
        (0, 110_000, None, True),
        (1_000_000, 110_000, HOUR, False),
        (1_000_000, 210_000, HOUR, True),
        (10, 1_100_000, 1000, True),
        (2_000_000, 1_100_000, 1000, False),
    ],
)
def test_dead_rows_are_bad_when_vacuum_does_not_come(live: int, dead: int, vacuumed: int | None, is_bad: bool) -> None:
    table = JOBS._replace(live_rows=live, dead_rows=dead, vacuum_age_ms=vacuumed)
    found = bad(WELL._replace(tables=(table,)), Queue(schema="S"))
    assert [finding.step[:33] for finding in found] == (['VACUUM (ANALYZE) "S".sqlane_jobs;'] if is_bad else [])


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("sqlane_jobs_pending", 'REINDEX INDEX CONCURRENTLY "S".sqlane_jobs_pending;'),
        ("sqlane_jobs_pending_ccnew", 'DROP INDEX CONCURRENTLY "S".sqlane_jobs_pending_ccnew;'),
        ("sqlane_jobs_pending_ccold12", 'DROP INDEX CONCURRENTLY "S".sqlane_jobs_pending_ccold12;'),
    ],
)
def test_left_over_indexes_are_dropped_and_others_rebuilt(name: str, step: str) -> None:
    assert bad(WELL._replace(invalid_indexes=(name,)), Queue(schema="S"))[0].step == step


def test_the_rest() -> None:
    assert bad(WELL) == []
    assert [one.topic for one in bad(WELL._replace(notify_queue=0.5, autovacuum=False))] == [
        "autovacuum",
        "notifications",
    ]
    assert all(one.why and one.step for one in bad(WELL._replace(notify_queue=0.5, autovacuum=False)))


def test_the_table_fits_into_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With rich, which folds the names of what is too wide."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = ("sqlane_payloads", "1,000,000", "1,000,000", "10%", "16 kB", "16 kB", "59 min", "59 min")
    show_table(HEADINGS, [row])
    assert "sqlane_payloads  1,000,000" in capsys.readouterr().out
