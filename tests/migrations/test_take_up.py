"""docs/migrations.md: an application that began with `sqlane migrate` takes up a chain of its own."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.util import CommandError

from sqlane_sa import Queue, migrations
from sqlane_sa.values.errors import SchemaError
from tests.migrations import project
from tests.migrations.project import Project

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("alembic.runtime.plugins") is None, reason="plugins came with Alembic 1.18"
)

STEPS = [shlex.split(line, comments=True) for line in project.TAKE_UP.splitlines()]
NEW, STAMP, OWN, UPGRADE = [arguments for _, *arguments in STEPS]


class Place:
    """A database that a project may be pointed at."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)

    def tables(self) -> tuple[bool, str | None]:
        """Whether the application's are there, and the revision of the queue's."""
        return sa.inspect(self.engine).has_table("users"), migrations.current(self.engine, Queue())


@pytest.fixture
def place(new_database: Callable[[], str]) -> Callable[[], Place]:
    return lambda: Place(new_database())


@pytest.fixture
def migrated(place: Callable[[], Place]) -> Callable[[], Place]:
    """One that `sqlane migrate` has made, with a job."""

    def make() -> Place:
        made, queue = place(), Queue()
        migrations.apply(made.engine, queue)
        queue.define("n")
        with made.engine.begin() as conn:
            queue.enqueue(conn, "n", id="kept")
        return made

    return make


@pytest.fixture
def app(tmp_path: Path, migrated: Callable[[], Place]) -> Project:
    made = Project(tmp_path / "project", "generic", migrated().url)
    made.knows()
    made.configures(project.PLUGIN)
    return made


def fill(app: Project) -> None:
    [file] = app.versions.glob("job_queue*.py")
    head, _, _ = file.read_text().partition("def upgrade")
    file.write_text(head + project.FIRST_CALL)


def is_kept(place: Place) -> bool:
    with place.engine.connect() as conn:
        return Queue().get(conn, "kept") is not None


def has_nothing_to_write(app: Project) -> None:
    app.run("check")


def test_the_steps(app: Project, place: Callable[[], Place], migrated: Callable[[], Place]) -> None:
    """In the database of the developer, in one that is deployed and in a new one; and all the way down."""
    assert [words[0] for words in STEPS] == ["alembic"] * 4
    app.run(*NEW)
    fill(app)
    app.run(*STAMP)
    app.run(*OWN)
    written = [file.read_text() for file in app.versions.glob("*.py") if not file.name.startswith("job_queue")]
    assert len(written) == 1 and "create_table('users'" in written[0] and "sqlane" not in written[0]
    app.run(*UPGRADE)
    has_nothing_to_write(app)
    deployed, new = migrated(), place()
    for one in (deployed, new):
        app.uses(one.url)
        if one is deployed:
            app.run(*STAMP)
        app.run(*UPGRADE)
        has_nothing_to_write(app)
        assert one.tables() == (True, migrations.head())
    assert is_kept(deployed)
    app.run("downgrade", "base")
    assert new.tables() == (False, None)


def test_a_database_that_was_not_stamped_is_refused_unchanged(app: Project, migrated: Callable[[], Place]) -> None:
    """And what the refusal advises makes the application's tables all the same."""
    app.run(*NEW)
    fill(app)
    app.run(*STAMP)
    app.run(*OWN)
    forgotten = migrated()
    app.uses(forgotten.url)
    with pytest.raises(SchemaError, match=r"this call and nothing else as done \(`alembic stamp` with its id"):
        app.run(*UPGRADE)
    assert forgotten.tables() == (False, migrations.head())
    app.run(*STAMP)
    app.run(*UPGRADE)
    assert forgotten.tables() == (True, migrations.head()) and is_kept(forgotten)


def test_a_database_that_was_stamped_without_the_tables_is_noticed(app: Project, place: Callable[[], Place]) -> None:
    app.run(*NEW)
    fill(app)
    app.run(*STAMP)
    app.run(*OWN)
    app.uses(place().url)
    app.run(*STAMP)
    app.run(*UPGRADE)
    with pytest.raises(CommandError, match="are not in the database"):
        app.run("check")


def test_autogenerate_came_first(app: Project, place: Callable[[], Place]) -> None:
    """Its revisions have no call, and a new database no queue; the revision at the end of the chain mends both."""
    app.run(*OWN)
    app.run(*UPGRADE)
    new = place()
    old_ini = (app.folder / "alembic.ini").read_text()
    app.uses(new.url)
    app.run(*UPGRADE)
    assert new.tables() == (True, None)
    (app.folder / "alembic.ini").write_text(old_ini)
    app.run(*NEW)
    fill(app)
    app.run(*STAMP)
    has_nothing_to_write(app)
    app.uses(new.url)
    app.run(*UPGRADE)
    has_nothing_to_write(app)
    assert new.tables() == (True, migrations.head())
