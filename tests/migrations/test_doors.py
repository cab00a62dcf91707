"""The doors of docs/migrations.md, as written there, in projects made by `alembic init` with each of its templates."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import alembic
import pytest
import sqlalchemy as sa
from alembic.util import CommandError

from sqlane_sa import migrations
from sqlane_sa.queue import Queue
from tests.migrations import project
from tests.migrations.project import Project

TEMPLATES = ("generic", "async", "pyproject", "pyproject_async")
AVAILABLE = {path.name for path in Path(alembic.__file__).parent.joinpath("templates").iterdir()}
HAS_PLUGINS = importlib.util.find_spec("alembic.runtime.plugins") is not None

needs_plugins = pytest.mark.skipif(not HAS_PLUGINS, reason="plugins came with Alembic 1.18")

New = Callable[..., Project]


@pytest.fixture
def new_project(tmp_path: Path, empty_url: str) -> New:
    def make(template: str, installed: Path | None = None) -> Project:
        if template not in AVAILABLE:
            pytest.skip(f"this Alembic has no template {template}")
        return Project(tmp_path / "project", template, empty_url, installed)

    return make


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package as a wheel lays it out."""
    site = tmp_path / "site"
    # With what is compiled: these tests start some processes each.
    shutil.copytree(Path(migrations.__file__).parents[1], site / "sqlane_sa")
    shutil.copytree(migrations.folder(), site / "sqlane_sa" / "alembic")
    return site


def add_revision(installed: Path, source: str) -> None:
    """An update of the package."""
    (installed / "sqlane_sa" / "alembic" / "versions" / "sqlane_0002.py").write_text(source)


def current(engine: sa.Engine) -> str | None:
    return migrations.current(engine, Queue())


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_call_in_a_revision(new_project: New, empty: sa.Engine, template: str) -> None:
    app = new_project(template)
    app.revision("job queue", project.FIRST_CALL)
    app.run("upgrade", "head")
    migrations.check(empty, Queue())
    app.run("downgrade", "base")
    assert sa.inspect(empty).get_table_names() == ["alembic_version"]


def test_a_call_in_a_revision_offline(new_project: New, empty: sa.Engine) -> None:
    app = new_project("generic")
    app.revision("job queue", project.FIRST_CALL)
    script = app.run("upgrade", "head", "--sql")
    with empty.connect().execution_options(isolation_level="AUTOCOMMIT", no_parameters=True) as conn:
        conn.exec_driver_sql(script)
    migrations.check(empty, Queue())


def test_the_call_after_an_update(new_project: New, empty: sa.Engine, installed: Path, second_revision: str) -> None:
    app = new_project("generic", installed)
    app.revision("job queue", project.FIRST_CALL)
    app.run("upgrade", "head")
    add_revision(installed, second_revision)
    app.revision("job queue, 0002", project.SECOND_CALL)
    app.run("upgrade", "head")
    assert current(empty) == "sqlane_0002"
    app.run("downgrade", "-1")
    assert current(empty) == "sqlane_0001"


@needs_plugins
@pytest.mark.parametrize("template", TEMPLATES)
def test_autogenerate_writes_the_call(new_project: New, empty: sa.Engine, template: str) -> None:
    app = new_project(template)
    app.knows("[metadata, queue.metadata]" if "pyproject" in template else "metadata")
    app.configures(project.PLUGIN)
    with pytest.raises(CommandError, match=r"are not in the database.*calls migrations\.upgrade\(to='0001'\)"):
        app.run("check")
    source = app.revision("all", None, "--autogenerate").read_text()
    assert "from sqlane_sa import migrations\n" in source
    assert source.index("    migrations.upgrade(to='0001')\n") < source.index("op.create_table('users'")
    assert source.index("op.drop_table('users'") < source.index("    migrations.downgrade(from_='0001')\n")
    assert source.count("sqlane") == 1
    app.run("upgrade", "head")
    migrations.check(empty, Queue())
    assert "No new upgrade operations detected." in app.run("check")
    app.run("downgrade", "base")
    assert sa.inspect(empty).get_table_names() == ["alembic_version"]


@needs_plugins
def test_autogenerate_after_an_update(
    new_project: New, empty: sa.Engine, installed: Path, second_revision: str
) -> None:
    app = new_project("generic", installed)
    app.knows()
    app.configures(project.PLUGIN)
    app.revision("all", None, "--autogenerate")
    app.run("upgrade", "head")
    add_revision(installed, second_revision)
    with pytest.raises(
        CommandError, match="are at revision sqlane_0001, and this version of sqlane_sa needs sqlane_0002"
    ):
        app.run("check")
    source = app.revision("update", None, "--autogenerate").read_text()
    assert "    migrations.upgrade(to='0002', from_='0001')\n" in source
    assert "    migrations.downgrade(to='0001', from_='0002')\n" in source
    assert "op." not in source
    app.run("upgrade", "head")
    assert current(empty) == "sqlane_0002"
    app.run("downgrade", "-1")
    assert current(empty) == "sqlane_0001"


@pytest.mark.parametrize("template", ["generic", "pyproject_async"])
def test_a_branch(new_project: New, empty: sa.Engine, installed: Path, second_revision: str, template: str) -> None:
    app = new_project(template, installed)
    app.knows("[metadata, queue.metadata]")
    app.has_branch()
    own = ("--head", "base", "--version-path", "alembic/versions", "--rev-id", "u1")
    app.revision("first", None, *own)
    with pytest.raises(CommandError, match="Multiple head revisions"):
        app.run("upgrade", "head")
    app.run("upgrade", "heads")
    migrations.check(empty, Queue())
    app.revision("second", None, "--head", "u1", "--autogenerate")
    add_revision(installed, second_revision)
    app.run("upgrade", "heads")
    assert current(empty) == "sqlane_0002"
    assert "users" in sa.inspect(empty).get_table_names()
    app.run("downgrade", "sqlane@base")
    assert set(sa.inspect(empty).get_table_names()) == {"alembic_version", "users"}


def test_a_branch_of_an_editable_installation(new_project: New, empty: sa.Engine) -> None:
    """As the package is here. Its folder is not where a wheel has it; the docs' command prints where it is."""
    app = new_project("generic")
    app.revision("first", None, "--rev-id", "u1")
    app.has_branch()
    app.run("upgrade", "heads")
    assert "sqlane_0001" not in app.run("heads")
    app.run("downgrade", "sqlane@base")
    assert app.run("current") == "", "it was no revision of the package that went"

    [command] = re.findall(r"`python -c \"(.*?)\"`", project.DOCS.read_text())
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    app.replace("alembic.ini", re.compile("sqlane_sa:alembic/versions"), done.stdout.strip())
    assert "sqlane_0001 (sqlane) (head)" in app.run("heads")
    app.run("upgrade", "heads")
    migrations.check(empty, Queue())
    app.run("downgrade", "sqlane@base")
    assert app.run("current") == "u1 (head)\n"


def test_the_branch_of_another_queue(new_project: New, empty: sa.Engine, installed: Path) -> None:
    """The options are read from pyproject.toml too."""
    app = new_project("pyproject", installed)
    app.has_branch()
    file = app.folder / "pyproject.toml"
    file.write_text(file.read_text() + 'sqlane_prefix = "my_"\nsqlane_schema = "mine"\n')
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA mine")
    app.run("upgrade", "heads")
    migrations.check(empty, Queue("my_", "mine"))
