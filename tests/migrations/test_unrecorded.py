"""Tables that autogenerate wrote from `queue.metadata`: all that looks at them says so, and the way out."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alembic
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.util import CommandError
from click.testing import CliRunner

from sqlane_sa import Queue, Worker, migrations
from sqlane_sa.cli import main
from sqlane_sa.values.errors import SchemaBehindError
from tests.migrations.test_autogenerate import PLUGIN, needs_plugins
from tests.migrations.usage import use

if TYPE_CHECKING:
    from conftest import Application

SENTENCE = (
    "the tables {} are in the database, but no revision of sqlane_sa made them (did create_all or autogenerate make "
    "them from queue.metadata?); take them out of what did, drop them, and make them with "
    "migrations.upgrade(to='0001'{}) in a revision of yours, or with `sqlane migrate{}`"
)
PLAIN = SENTENCE.format("'sqlane_*'", "", "")


def drop(queue: Queue) -> str:
    return f"DROP TABLE {', '.join(queue.metadata.tables)}"


@pytest.fixture
def generated(application: "Application", empty: sa.Engine) -> "Application":
    """With a revision that autogenerate wrote from the metadata alone, and that is in the database."""
    application.config.attributes["metadata"] = Queue().metadata
    shutil.copy(Path(alembic.__file__).parent / "templates" / "generic" / "script.py.mako", application.folder)
    script: Any = command.revision(application.config, autogenerate=True, rev_id="a1")
    assert "op.create_table('sqlane_jobs'" in Path(script.path).read_text()
    application.upgrade()
    return application


def test_what_starts_says_so(generated: "Application", empty: sa.Engine) -> None:
    queue = Queue()
    queue.job("n")(print)

    def start() -> None:
        Worker(empty, queue).start()

    for step in (lambda: migrations.check(empty, queue), lambda: migrations.apply(empty, queue), start):
        with pytest.raises(SchemaBehindError) as caught:
            step()
        assert str(caught.value) == PLAIN
    for arguments in (["migrate"], ["migrate", "check"], ["stats"]):
        result = CliRunner().invoke(main, [*arguments, "--url", empty.url.render_as_string(hide_password=False)])
        assert (result.exit_code, result.output) == (1, f"sqlane: {PLAIN}\n")


@pytest.mark.parametrize("lose", ["DELETE FROM sqlane_version", "DROP TABLE sqlane_version"])
def test_a_call_says_so_and_the_advice_helps(generated: "Application", empty: sa.Engine, lose: str) -> None:
    with empty.begin() as conn:
        conn.exec_driver_sql(lose)
    before = sa.inspect(empty).get_table_names()
    generated.revision("a2", "a1", "migrations.upgrade(to='0001')", "migrations.downgrade(from_='0001')")
    with pytest.raises(SchemaBehindError) as caught:
        generated.upgrade()
    assert str(caught.value) == PLAIN
    assert sa.inspect(empty).get_table_names() == before

    (generated.folder / "versions" / "a1_.py").unlink()
    generated.revision("a1")
    with empty.begin() as conn:
        conn.exec_driver_sql(drop(Queue()).replace(" TABLE ", " TABLE IF EXISTS "))
    generated.upgrade()
    migrations.check(empty, Queue())
    use(empty, Queue())


@needs_plugins
def test_the_plugin_says_so(generated: "Application") -> None:
    generated.config.attributes["options"] = PLUGIN
    with pytest.raises(CommandError) as caught:
        command.check(generated.config)
    assert str(caught.value) == PLAIN


def test_another_queue_is_named(empty: sa.Engine) -> None:
    queue = Queue("my_", "mine")
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA mine")
        queue.metadata.create_all(conn)
    with pytest.raises(SchemaBehindError) as caught:
        migrations.check(empty, queue)
    place = ", prefix='my_', schema='mine'"
    assert str(caught.value) == SENTENCE.format("'my_*' in schema 'mine'", place, " --prefix my_ --schema mine")


def test_a_table_elsewhere_on_the_search_path_is_not_the_queues(new_database: Callable[[], str]) -> None:
    engine = sa.create_engine(new_database(), connect_args={"options": "-c search_path=one,public"})
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA one")
        conn.exec_driver_sql("CREATE TABLE public.sqlane_jobs ()")
    migrations.apply(engine, Queue())
    migrations.check(engine, Queue())
    engine.dispose()
