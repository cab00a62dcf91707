"""The code of one release and the tables of the next: what runs goes on, and what starts is refused."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sqlane_sa import Queue, Worker, migrations
from sqlane_sa.cli import main
from sqlane_sa.migrations import chain
from sqlane_sa.values.errors import SchemaAheadError, SchemaBehindError
from tests.migrations import usage
from tests.store.test_statements import STATEMENTS

REPOSITORY = Path(migrations.__file__).parents[2]
AHEAD = "the database is at revision sqlane_0002, and this version of sqlane_sa knows none after sqlane_0001; install"
BEHIND = "are at revision sqlane_0001, and this version of sqlane_sa needs sqlane_0002; run `alembic upgrade head`"

# With the public names of the first release. A line on its stdin says that the tables have been migrated.
OLD_CODE = """
import sys, time
import sqlalchemy as sa
from sqlane_sa import Queue, Retry, Worker, migrations

queue = Queue()
plain = queue.job("plain")(lambda payload: None)

@queue.job("again", max_attempts=2)
def again(payload, ctx):
    if ctx.attempt == 1:
        raise Retry(delay=0)

@queue.job("keyed", mutex_keys=lambda payload: ["key"], transactional=True)
def keyed(payload, ctx):
    ctx.session.execute(sa.text("SELECT 1"))

@queue.job("fails", max_attempts=1, failure_job="plain")
def fails(payload):
    1 / 0

def unfinished():
    with engine.connect() as conn:
        return sum(one.pending + one.running for one in queue.stats(conn).values())

engine = sa.create_engine(sys.argv[1])
migrations.apply(engine, queue)
with Worker(engine, queue, poll_interval=0.05, sweep_interval=0.05):
    for _ in range(2):
        with engine.begin() as conn:
            jobs = queue.enqueue_many(conn, [handle.new() for handle in (plain, again, keyed, keyed, fails)])
        while unfinished():
            time.sleep(0.01)
        with engine.connect() as conn:
            print(*(queue.get(conn, job.id).status for job in jobs), flush=True)
        sys.stdin.readline()
"""


def last_release(folder: Path) -> Path:
    """The sources of the last tag of the repository; before the first one, or without a repository, these here."""
    git = ["git", "-C", str(REPOSITORY)]
    tag = subprocess.run([*git, "describe", "--tags", "--abbrev=0"], capture_output=True, text=True)
    if tag.returncode != 0:
        return REPOSITORY
    archive = subprocess.run([*git, "archive", tag.stdout.strip()], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def test_the_last_release_works_on_through_an_upgrade(
    empty: sa.Engine, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A worker and enqueues, started before it."""
    command = [sys.executable, "-c", OLD_CODE, empty.url.render_as_string(hide_password=False)]
    environment = {**os.environ, "PYTHONPATH": str(last_release(tmp_path / "old"))}
    old = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert old.stdin is not None and old.stdout is not None
        assert old.stdout.readline() == "completed completed completed completed failed\n"
        request.getfixturevalue("two_revisions")
        assert migrations.apply(empty, Queue())[-1] == "sqlane_0002"
        old.stdin.write("\n")
        old.stdin.flush()
        assert old.stdout.readline() == "completed completed completed completed failed\n"
        old.communicate("\n", timeout=60)
    finally:
        old.kill()
        old.wait()
    assert old.returncode == 0


@pytest.mark.usefixtures("two_revisions")
def test_every_statement_runs_on_the_tables_of_the_next_revision(empty: sa.Engine) -> None:
    queue = Queue()
    for revision in ("0001", "0002"):
        migrations.apply(empty, queue, revision)
        with empty.begin() as conn:
            usage.insert(conn, queue)
            usage.work(conn, queue)
            usage.insert_many(conn, queue)
            usage.look(conn, queue)
        with empty.connect() as conn:
            usage.complete_and_commit(conn, queue)
    assert {name for name, statement in STATEMENTS.items() if statement not in queue.tables.rendered} == set()


def refused(engine: sa.Engine, kind: type[Exception], message: str) -> None:
    """By everything that starts, in one sentence, and with nothing changed."""
    before = migrations.current(engine, Queue())
    queue = Queue()
    queue.job("n")(print)
    with pytest.raises(kind, match=message) as caught:
        Worker(engine, queue).start()
    assert str(caught.value).count("\n") == 0
    url = engine.url.render_as_string(hide_password=False)
    for command in (["stats"], ["migrate", "check"]):
        result = CliRunner().invoke(main, [*command, "--url", url])
        assert (result.exit_code, result.output) == (1, f"sqlane: {caught.value}\n")
    assert migrations.current(engine, queue) == before


@pytest.mark.usefixtures("two_revisions")
def test_code_that_is_newer_than_the_tables_does_not_start(empty: sa.Engine) -> None:
    migrations.apply(empty, Queue(), "0001")
    refused(empty, SchemaBehindError, BEHIND)


@pytest.mark.usefixtures("two_revisions")
def test_code_that_is_older_than_the_tables_does_not_start(empty: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    migrations.apply(empty, Queue())
    monkeypatch.undo()
    chain.revisions.cache_clear()
    refused(empty, SchemaAheadError, AHEAD)
