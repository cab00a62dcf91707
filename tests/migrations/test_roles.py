"""docs/roles.md: each role does its work with the rights listed there, and not without any of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.exc import ProgrammingError

from sqlane_sa import Queue, Worker, WorkerError, migrations, store
from sqlane_sa.cli import main
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import JobLock
from tests.migrations import usage
from tests.support import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "roles.md").read_text()
SECTIONS = {part.splitlines()[0]: part for part in PAGE.split("\n## ")[1:]}
BLOCKS = {name: re.findall(r"```sql\n(.*?)```", part, re.S) for name, part in SECTIONS.items()}
GRANT = re.compile(r"GRANT (.+) ON (.+) TO (\w+);\n")


class Right(NamedTuple):
    privilege: str
    table: str


def rights(block: str) -> list[Right]:
    """One for each privilege and table that a block of the page names."""
    found = GRANT.findall(block)
    assert "".join(f"GRANT {a} ON {b} TO {c};\n" for a, b, c in found) == block
    return [
        Right(privilege, table)
        for privileges, tables, _ in found
        for privilege in re.split(r", (?![^(]*\))", privileges)
        for table in tables.split(", ")
    ]


APP, APP_WITH_IDS = BLOCKS["app"]
[WORKER] = BLOCKS["worker"]
MAINTENANCE, MAINTENANCE_OF_FAILURES = BLOCKS["maintenance"]
[READONLY] = BLOCKS["readonly"]


class Team:
    """A queue that an owner without other rights has migrated, in a schema of the owner's, and roles for it."""

    def __init__(self, engine: sa.Engine, new_role: Callable[[], str], revision: str = "head") -> None:
        self.engine = engine
        self.new_role = new_role
        self.queue = Queue(schema="queues")
        self.owner = new_role()
        database = engine.url.database
        with engine.begin() as conn:
            conn.exec_driver_sql("REVOKE ALL ON SCHEMA public FROM PUBLIC")
            conn.exec_driver_sql(f"GRANT CREATE ON DATABASE {database} TO {self.owner}")
        migrations.apply(self.login(self.owner), self.queue, revision)

    def login(self, role: str) -> sa.Engine:
        return sa.create_engine(self.engine.url.set(username=role, password="sqlane"), poolclass=sa.NullPool)

    def role(self, *blocks: str) -> str:
        """A new one that the owner has given what the blocks say."""
        role = self.new_role()
        with self.login(self.owner).begin() as conn:
            conn.exec_driver_sql(f"GRANT USAGE ON SCHEMA queues TO {role}")
            for block in blocks:
                conn.exec_driver_sql(re.sub(r"TO \w+;", f"TO {role};", re.sub(r"\bsqlane_", "queues.sqlane_", block)))
        return role

    def engine_of(self, *blocks: str) -> sa.Engine:
        return self.login(self.role(*blocks))


@pytest.fixture
def team(empty: sa.Engine, new_role: Callable[[], str]) -> Team:
    return Team(empty, new_role)


def enqueue(conn: sa.Connection, queue: Queue) -> None:
    usage.insert(conn, queue)
    usage.insert(conn, queue, mutex_keys=["k"])


def enqueue_with_ids(conn: sa.Connection, queue: Queue) -> None:
    enqueue(conn, queue)
    for _ in range(2):
        usage.insert(conn, queue, id="known")


def start_and_work(conn: sa.Connection, queue: Queue) -> None:
    migrations.check(conn, queue)
    usage.work(conn, queue)


def start_and_look(conn: sa.Connection, queue: Queue) -> None:
    migrations.check(conn, queue)
    usage.look(conn, queue)
    store.worker_seen(conn, queue.tables)


def lose_one(conn: sa.Connection, queue: Queue) -> None:
    """As the owner: one job each that stalled, that is delayed, and that has expired; and a key that lingers."""
    role = conn.scalar(sa.text("SELECT current_user"))
    conn.exec_driver_sql("SET LOCAL ROLE NONE")
    usage.insert(conn, queue, "kept", mutex_keys=["k"], delay=0)
    usage.insert(conn, queue, "kept", delay=60)
    ids = store.find_candidates(conn, queue.tables, limits_by_name={"kept": 9})
    store.claim(conn, queue.tables, candidate_ids=ids, lock_token=new_id(), locked_by="w", lease=0)
    expired = usage.insert(conn, queue, "kept", delay=60)
    conn.exec_driver_sql(
        "UPDATE queues.sqlane_jobs SET status = 'completed', expires_at = statement_timestamp() WHERE id = %s",
        (expired,),
    )
    conn.exec_driver_sql(f"SET LOCAL ROLE {role}")


def recover_and_sweep(conn: sa.Connection, queue: Queue) -> None:
    tables = queue.tables
    lose_one(conn, queue)
    [stale] = store.find_stale(conn, tables, limit=9)
    assert store.recover_stale(conn, tables, id=stale, lease=0, stall_delay=0).status == "pending"
    assert store.sweep_mutexes(conn, tables, limit=9).lingers == 1
    store.sweep_waits(conn, tables, limit=9)
    store.sweep_sleepers(conn, tables)
    assert store.delete_expired(conn, tables, limit=9) == 1


def make_due(conn: sa.Connection, queue: Queue) -> None:
    lose_one(conn, queue)
    assert store.make_due(conn, queue.tables, names=["kept"]) > 0


def retry_failed(conn: sa.Connection, queue: Queue) -> None:
    role = conn.scalar(sa.text("SELECT current_user"))
    conn.exec_driver_sql("SET LOCAL ROLE NONE")
    id_ = usage.insert(conn, queue, "kept", mutex_keys=["k"])
    conn.exec_driver_sql("UPDATE queues.sqlane_jobs SET status = 'failed' WHERE id = %s", (id_,))
    conn.exec_driver_sql(f"SET LOCAL ROLE {role}")
    assert store.retry_failed(conn, queue.tables, ids=[id_]) == [id_]


def count(conn: sa.Connection, queue: Queue) -> None:
    migrations.check(conn, queue)
    store.stats(conn, queue.tables)
    store.health(conn, queue.tables)


def maintain(conn: sa.Connection, queue: Queue) -> None:
    count(conn, queue)
    recover_and_sweep(conn, queue)
    make_due(conn, queue)
    retry_failed(conn, queue)


def fail_stalled(conn: sa.Connection, queue: Queue) -> None:
    """The last stall of a job with a failure job."""
    maintain(conn, queue)
    role = conn.scalar(sa.text("SELECT current_user"))
    conn.exec_driver_sql("SET LOCAL ROLE NONE")
    usage.insert(conn, queue)
    [job] = store.claim_plain(conn, queue.tables, lanes=[("n", 0, 1)], lock_token=new_id(), locked_by="w", lease=0)
    conn.exec_driver_sql("UPDATE queues.sqlane_jobs SET stalls = max_stalls, failed_retention_ms = 1")
    conn.exec_driver_sql(f"SET LOCAL ROLE {role}")
    found = store.recover_stale(conn, queue.tables, id=job.id, lease=0, build_failure_job=queue.build_failure_job)
    assert found.status == "failed"
    assert found.failure is not None
    if found.failure.failure_job_error:
        raise ProgrammingError(found.failure.failure_job_error, None, Exception(found.failure.failure_job_error))


def claim(conn: sa.Connection, queue: Queue) -> None:
    lose_one(conn, queue)
    store.make_due(conn, queue.tables, names=["kept"])
    assert store.claim_plain(conn, queue.tables, lanes=[("kept", 0, 9)], lock_token=new_id(), locked_by="w", lease=60)


def finish(conn: sa.Connection, queue: Queue) -> None:
    lose_one(conn, queue)
    [(id_, token)] = conn.execute(sa.text("SELECT id, lock_token FROM queues.sqlane_jobs WHERE status = 'running'"))
    assert store.complete(conn, queue.tables, jobs=[JobLock(id_, token)]) == [id_]


def read(conn: sa.Connection, queue: Queue) -> None:
    store.get(conn, queue.tables, id="none")


def migrate(conn: sa.Connection, queue: Queue) -> None:
    migrations.revert(conn, queue)


# Of the page's table, in its order.
DOES = [enqueue, read, count, claim, finish, recover_and_sweep, make_due, retry_failed, migrate]


@pytest.mark.parametrize(
    ("do", "blocks"),
    [
        (enqueue, [APP]),
        (enqueue_with_ids, [APP, APP_WITH_IDS]),
        (start_and_work, [WORKER]),
        (start_and_look, [READONLY]),
        (maintain, [MAINTENANCE]),
        (fail_stalled, [MAINTENANCE, MAINTENANCE_OF_FAILURES]),
    ],
)
def test_every_right_that_is_listed_is_enough_and_needed(
    team: Team, do: Callable[[sa.Connection, Queue], None], blocks: list[str]
) -> None:
    role = team.role(*blocks)
    needed = []
    with team.engine.connect() as conn:
        for right in [None, *(right for block in blocks for right in rights(block))]:
            # The owner's statements and the role's in one transaction that leaves nothing.
            if right is not None:
                conn.exec_driver_sql(f"REVOKE {right.privilege} ON queues.{right.table} FROM {role}")
            conn.exec_driver_sql(f"SET LOCAL ROLE {role}")
            try:
                do(conn, team.queue)
            except ProgrammingError as error:
                assert right is not None, error
                needed.append((right, f"permission denied for table {right.table}" in str(error)))
            else:
                needed.append((right, right is None))
            conn.rollback()
    assert [right for right, as_expected in needed if not as_expected] == []


def test_each_role_does_its_own_work_and_not_that_of_the_others(team: Team) -> None:
    """The page's table, each cell tried as that role, in a transaction that leaves nothing."""
    _, heading, _, *rows = SECTIONS["Who can do what"].split("\n|")
    columns = [cell.strip() for cell in heading.split("|")[1:-1]]
    roles = {
        "owner": team.owner,
        "app": team.role(APP),
        "worker": team.role(WORKER),
        "maintenance": team.role(MAINTENANCE),
        "readonly": team.role(READONLY),
    }
    assert columns == list(roles)
    assert len(rows) == len(DOES)
    for row, do in zip(rows, DOES, strict=True):
        label, *cells = [cell.strip() for cell in row.split("|")[:6]]
        said = dict(zip(columns, cells, strict=True))
        assert {role: can(team, roles[role], do) for role in columns} == said, label


def can(team: Team, role: str, do: Callable[[sa.Connection, Queue], None]) -> str:
    with team.engine.connect() as conn:
        conn.exec_driver_sql(f"SET LOCAL ROLE {role}")
        try:
            do(conn, team.queue)
        except ProgrammingError as error:
            assert "permission denied" in str(error) or "must be owner" in str(error), error
            return "no"
        finally:
            conn.rollback()
    return "yes"


def test_the_app_may_only_enqueue(team: Team) -> None:
    app = team.engine_of(APP)
    with app.begin() as conn:
        enqueue(conn, team.queue)
    for refused in (start_and_look, enqueue_with_ids, start_and_work):
        with pytest.raises(ProgrammingError, match="permission denied for table sqlane_"):
            with app.begin() as conn:
                refused(conn, team.queue)


def test_a_worker_does_no_ddl(team: Team) -> None:
    """Neither with the rights to nor without; the database would refuse every statement of that sort."""
    with team.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no %%', tg_tag; END $$"
        )
        conn.exec_driver_sql("CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse()")
    with pytest.raises(sa.exc.DBAPIError, match="no CREATE SCHEMA"):
        migrations.apply(team.engine, Queue(schema="another"))
    for engine in (team.login(team.owner), team.engine):
        usage.use(engine, Queue(schema="queues"))
    with team.engine.begin() as conn:
        conn.exec_driver_sql("DROP EVENT TRIGGER refuse")


def test_a_worker_works_with_its_rights(team: Team) -> None:
    usage.use(team.engine_of(WORKER), Queue(schema="queues"))


def test_a_worker_says_which_right_it_lacks(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue(schema="queues")
    queue.job("n")(print)
    with pytest.raises(ProgrammingError, match="permission denied for table sqlane_version"):
        Worker(team.engine_of(APP), queue).start()
    for run in (lambda worker: worker.start(), lambda worker: worker.run_until_idle()):
        with pytest.raises(WorkerError, match=r"no right to UPDATE on queues\.sqlane_jobs; docs/roles\.md"):
            run(Worker(team.engine_of(READONLY), queue))
    less = WORKER.replace("sqlane_mutexes, ", "")
    assert less != WORKER
    with Worker(team.engine_of(less), queue, poll_interval=0.05):
        wait_until(lambda: "permission denied for table sqlane_mutexes; trying again until it works" in caplog.text)


@pytest.mark.parametrize("table", ["jobs", "payloads", "version"])
def test_a_worker_does_not_start_where_no_policy_shows_it_rows(team: Team, table: str) -> None:
    """Row level security that is on for every table hides all jobs from whoever does not own them, and says nothing."""
    queue = Queue(schema="queues")
    queue.job("n")(print)
    engine = team.engine_of(WORKER)
    with team.engine.begin() as conn:
        conn.exec_driver_sql(f"ALTER TABLE queues.sqlane_{table} ENABLE ROW LEVEL SECURITY")
    with pytest.raises(WorkerError, match=rf"row level security, and no policy\) on queues\.sqlane_{table}"):
        Worker(engine, queue).start()
    with team.engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE POLICY workers ON queues.sqlane_{table} USING (true)")
    usage.use(engine, Queue(schema="queues"))


def test_the_commands_say_which_right_they_lack(team: Team) -> None:
    def run(engine: sa.Engine, *command: str) -> str:
        url = engine.url.render_as_string(hide_password=False)
        result = CliRunner().invoke(main, [*command, "--schema", "queues", "--url", url])
        return f"{result.exit_code} {result.output}"

    readonly, app = team.engine_of(READONLY), team.engine_of(APP)
    assert run(readonly, "stats") == "0 the queue is empty: nothing waits, runs or has failed\n"
    examined = run(readonly, "doctor")
    assert examined.startswith("0 ") and "none is seen, and no job waits for one" in examined
    assert run(readonly, "migrate", "check").startswith("0 ")
    for command in (("stats",), ("migrate", "check"), ("migrate",)):
        assert re.fullmatch(
            r"1 sqlane: \S+ ?\S*: permission denied for table sqlane_version; "
            r"grant the right to this user \(docs/roles\.md\), or use another one\n",
            run(app, *command),
        ), command
    assert run(readonly, "failed") == "0 no failed job is kept\n"
    assert run(readonly, "retry", "id").endswith(
        " refused: permission denied for table sqlane_jobs; "
        "grant the right to this user (docs/roles.md), or use another one\n"
    )
    assert run(team.engine_of(MAINTENANCE), "retry", "id").startswith("1 sqlane: not failed, and left as they are: id;")


@pytest.mark.usefixtures("two_revisions")
def test_an_upgrade_keeps_the_rights(empty: sa.Engine, new_role: Callable[[], str]) -> None:
    team = Team(empty, new_role, "0001")
    role = team.role(WORKER)
    migrations.apply(team.login(team.owner), team.queue)
    with empty.begin() as conn:
        conn.exec_driver_sql(f"SET LOCAL ROLE {role}")
        usage.work(conn, team.queue)
