"""The package's folder as a branch beside the application's chain, or its files in it, and what Alembic does there."""

import shutil
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.util import CommandError

from sqlane_sa import Queue, migrations
from sqlane_sa.migrations import chain

if TYPE_CHECKING:
    from conftest import Application

pytestmark = pytest.mark.usefixtures("two_revisions")


@pytest.fixture
def branched(application: "Application") -> "Application":
    """With the chain u1-u2-u3, and the package's folder as one more version location."""
    for revision, down_revision in (("u1", None), ("u2", "u1"), ("u3", "u2")):
        application.revision(revision, down_revision)
    application.has_branch()
    return application


def depend(application: "Application", on: str) -> None:
    """Make u3 depend on a revision of the package."""
    file = application.folder / "versions" / "u3.py"
    file.write_text(file.read_text() + f"\n\ndepends_on = {on!r}\n")


def shown(application: "Application", show: str) -> set[str]:
    """The revisions that `alembic current` or `heads` prints."""
    application.output.seek(0)
    application.output.truncate()
    application.config.stdout = application.output
    getattr(command, show)(application.config)
    return {line.split()[0] for line in application.output.getvalue().splitlines() if line}


def at(engine: sa.Engine) -> str | None:
    return migrations.current(engine, Queue())


def check(application: "Application") -> None:
    """Nobody but the queue has tables here."""
    application.config.attributes["metadata"] = sa.MetaData()
    application.config.attributes["options"] = {"include_name": migrations.include_name(Queue())}
    command.check(application.config)


def test_a_branch_with_its_label(branched: "Application", empty: sa.Engine) -> None:
    assert shown(branched, "heads") == {"u3", "sqlane_0002"}
    with pytest.raises(CommandError, match="Multiple head revisions are present"):
        branched.upgrade("head")
    for _ in range(2):
        branched.upgrade("heads")
        assert shown(branched, "current") == {"u3", "sqlane_0002"}
        assert at(empty) == "sqlane_0002"
        check(branched)
        branched.downgrade("sqlane@-1")
        assert shown(branched, "current") == {"u3", "sqlane_0001"}
        assert at(empty) == "sqlane_0001"
        branched.downgrade("sqlane@base")
        assert shown(branched, "current") == {"u3"}
        assert at(empty) is None
    branched.upgrade("sqlane@head")
    branched.downgrade("u1")
    assert shown(branched, "current") == {"u1", "sqlane_0002"}


def test_an_update_of_the_package_is_no_affair_of_the_chain(branched: "Application", empty: sa.Engine) -> None:
    """The second revision comes when the application has one more of its own."""
    later = chain.folder() / "versions" / "sqlane_0002.py"
    source = later.read_text()
    later.unlink()
    branched.upgrade("heads")
    assert shown(branched, "current") == {"u3", "sqlane_0001"}
    branched.revision("u4", "u3")
    later.write_text(source)
    assert shown(branched, "heads") == {"u4", "sqlane_0002"}
    branched.upgrade("heads")
    assert shown(branched, "current") == {"u4", "sqlane_0002"}
    assert at(empty) == "sqlane_0002"


def test_a_revision_that_depends_on_the_branch(branched: "Application", empty: sa.Engine) -> None:
    depend(branched, "sqlane_0001")
    branched.upgrade("u3")
    assert at(empty) == "sqlane_0001"
    with pytest.raises(CommandError, match="Multiple head revisions are present"):
        branched.upgrade("head")
    for _ in range(2):
        branched.upgrade("heads")
        assert shown(branched, "current") == {"u3", "sqlane_0002"}
        check(branched)
        branched.downgrade("sqlane@-1")
        assert at(empty) == "sqlane_0001"
        assert "u3" in shown(branched, "current")
        branched.downgrade("sqlane@base")
        assert at(empty) is None
        assert shown(branched, "current") == {"u2"}, "what depends on it goes first"


def test_copies_in_the_chain(application: "Application", empty: sa.Engine) -> None:
    """As a file of the application's own, a revision follows another one; the rest of it stays as it is."""
    application.revision("u1")
    copy(application, "sqlane_0001", after="u1")
    application.revision("u2", "sqlane_0001")
    application.upgrade()
    assert at(empty) == "sqlane_0001"
    copy(application, "sqlane_0002", after="u2")
    for _ in range(2):
        application.upgrade()
        assert shown(application, "current") == shown(application, "heads") == {"sqlane_0002"}
        migrations.check(empty, Queue())
        check(application)
        application.downgrade("-1")
        assert at(empty) == "sqlane_0001"
        application.downgrade("u1")
        assert at(empty) is None
        assert sa.inspect(empty).get_table_names() == ["alembic_version"]


def copy(application: "Application", revision: str, after: str) -> None:
    file = application.folder / "versions" / f"{revision}.py"
    shutil.copy(chain.folder() / "versions" / file.name, file)
    before, name, rest = file.read_text().partition("down_revision = ")
    file.write_text(before + name + repr(after) + "\n" + rest.partition("\n")[2])
