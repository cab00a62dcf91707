"""C47: with a prefix and a schema of its own, each way to enqueue wakes a worker that polls once an hour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sqlane_sa import Discard, JobContext, Queue, Worker, migrations, store
from sqlane_sa.cli.group import main as sqlane
from tests.enqueue.doors import ASYNC, SYNC, opened
from tests.followed import Followed
from tests.support import wait_until

SCHEMA, PREFIX = "Else where", "other_"
NEVER: dict[str, Any] = {"poll_interval": 3600, "sweep_interval": 3600, "lease": 3600}


class Scene:
    """Two sleeping workers of one queue: `there` runs what enqueues, `here` the jobs that are to be woken for."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.queue = Queue(prefix=PREFIX, schema=SCHEMA)
        self.ran: list[Any] = []
        self.go = threading.Event()
        migrations.apply(engine, self.queue)
        self._define()
        names = [name for name in self.queue.definitions if name not in ("n", "keyed")]
        self.there = Worker(engine, self.queue, names=names, **NEVER)
        self.here = Worker(engine, self.queue, names=["n", "keyed"], **NEVER)

    def _define(self) -> None:
        job, ran = self.queue.job, self.ran

        @job("parent")
        def parent(payload: Any, ctx: JobContext) -> None:
            ctx.enqueue("n", "from a handler")

        @job("async parent")
        async def async_parent(payload: Any, ctx: JobContext) -> None:
            ctx.enqueue("n", "from an async handler")

        @job("transactional parent", transactional=True)
        def transactional_parent(payload: Any, ctx: JobContext) -> None:
            self.queue.enqueue(ctx.connection, "n", "in the job's transaction")

        @job("failing", failure_job="n")
        def failing(payload: Any) -> None:
            raise Discard("for good")

        @job("holder", mutex_keys=["k"])
        def holder(payload: Any) -> None:
            assert self.go.wait(60)

        job("n")(ran.append)
        job("keyed", mutex_keys=["k"])(ran.append)

    def count(self, table: str, where: str = "true") -> int:
        with self.engine.connect() as conn:
            found = conn.exec_driver_sql(f'SELECT count(*) FROM "{SCHEMA}"."{PREFIX}{table}" WHERE {where}')
            return int(found.scalar_one())

    def wait_for_sleep(self) -> None:
        wait_until(lambda: self.count("sleepers") == 2, message="two sleeping workers")
        for worker in (self.there, self.here):
            assert worker._parts is not None
            wait_until(worker._parts.loop.idle.is_set)

    def enqueue(self, name: str, **options: Any) -> None:
        with self.engine.begin() as conn:
            self.queue.enqueue(conn, name, **options)


@pytest.fixture
def scene(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    Followed.only_wake_ups(monkeypatch)
    with engine.begin() as conn:
        conn.exec_driver_sql(f'CREATE SCHEMA "{SCHEMA}"')
    scene = Scene(engine)
    with scene.there, scene.here:
        scene.wait_for_sleep()
        yield scene
        scene.go.set()


@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_by_each_handle(scene: Scene, database_url: str, kind: str) -> None:
    with opened(kind, database_url, scene.queue) as door:
        door.add("one")
        door.commit()
        wait_until(lambda: scene.ran == ["one"])
        scene.wait_for_sleep()
        door.add_many([scene.queue.new("n", n) for n in range(3)])
        door.commit()
        wait_until(lambda: {*scene.ran} == {"one", 0, 1, 2})


@pytest.mark.parametrize("name", ["parent", "async parent", "transactional parent", "failing"])
def test_from_another_workers_handler(scene: Scene, name: str) -> None:
    followed = Followed(scene.here)
    scene.enqueue(name)
    wait_until(lambda: scene.ran)
    followed.check()


def test_when_a_key_is_freed(scene: Scene) -> None:
    scene.enqueue("holder")
    wait_until(lambda: scene.count("jobs", "status = 'running'") == 1)
    followed = Followed(scene.here)
    scene.enqueue("keyed", payload="next")
    assert scene.ran == []
    scene.go.set()
    wait_until(lambda: scene.ran == ["next"])
    followed.check()


def make_due(scene: Scene) -> None:
    with scene.engine.begin() as conn:
        store.make_due(conn, scene.queue.tables, names=["n"])


def retry_failed(scene: Scene) -> None:
    with scene.engine.begin() as conn:
        ids = store.failed_ids(conn, scene.queue.tables, name="n", limit=1)
        assert store.retry_failed(conn, scene.queue.tables, ids=ids) == ids


def retry_by_command(scene: Scene) -> None:
    url = scene.engine.url.render_as_string(hide_password=False)
    command = ["retry", "--names", "n", "--prefix", PREFIX, "--schema", SCHEMA, "--url", url]
    assert CliRunner().invoke(sqlane, command).exit_code == 0


def delayed(scene: Scene) -> None:
    """The worker that is told of it knows when to look again."""
    scene.enqueue("n", delay=0.2)


@pytest.mark.parametrize("act", [make_due, delayed])
def test_when_a_job_becomes_due(scene: Scene, act: Callable[[Scene], None]) -> None:
    if act is make_due:
        scene.enqueue("n", delay=3600)
        scene.wait_for_sleep()
        assert scene.ran == []
    act(scene)
    wait_until(lambda: len(scene.ran) == 1)


@pytest.mark.parametrize("act", [retry_failed, retry_by_command])
def test_when_a_failed_job_is_set_back(scene: Scene, act: Callable[[Scene], None]) -> None:
    with scene.engine.begin() as conn:
        failed = scene.queue.enqueue(conn, "n", delay=3600)
        tables = scene.queue.tables
        conn.execute(
            sa.update(tables.jobs)
            .where(tables.jobs.c.id == failed.id)
            .values(status="failed", finished_at=sa.func.now())
        )
    scene.wait_for_sleep()
    followed = Followed(scene.here)
    act(scene)
    wait_until(lambda: len(scene.ran) == 1)
    followed.check()
