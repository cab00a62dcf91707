"""The Alembic environment of this repository, with which packaged revisions are developed."""

import shutil
from io import StringIO
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from sqlane_sa import migrations
from sqlane_sa.queue import Queue


@pytest.fixture
def environment(empty: sa.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Config:
    """On a copy, so that a test may add a revision."""
    monkeypatch.setenv("SQLANE_DATABASE_URL", empty.url.render_as_string(hide_password=False))
    folder = tmp_path / "alembic"
    shutil.copytree(migrations.folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    config = Config(output_buffer=StringIO(), stdout=StringIO())
    config.set_main_option("script_location", str(folder))
    config.set_main_option("file_template", "%%(rev)s")
    return config


@pytest.mark.parametrize("queue", [Queue(), Queue("my_", "mine")])
def test_it_sees_the_tables_and_nothing_else(environment: Config, empty: sa.Engine, queue: Queue) -> None:
    environment.attributes["sqlane_target"] = queue
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA mine")
        conn.exec_driver_sql("CREATE TABLE not_ours ()")
    command.upgrade(environment, "head")
    command.check(environment)
    migrations.check(empty, queue)
    command.downgrade(environment, "base")
    assert migrations.current(empty, queue) is None


def test_a_new_revision_from_the_template(environment: Config, empty: sa.Engine) -> None:
    migrations.apply(empty, Queue())
    command.upgrade(environment, "head", sql=True)
    command.stamp(environment, "head")
    command.revision(environment, "Next", rev_id="sqlane_0002")
    command.upgrade(environment, "head")
    assert migrations.current(empty, Queue()) == "sqlane_0002"
    command.downgrade(environment, "sqlane_0001")
    assert migrations.current(empty, Queue()) == migrations.head()


def test_the_url_must_be_set(environment: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLANE_DATABASE_URL")
    with pytest.raises(CommandError, match="SQLANE_DATABASE_URL is not set; for example"):
        command.upgrade(environment, "head")
