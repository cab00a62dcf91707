"""Autogenerate leaves the queue's tables alone, with their metadata, with a filter, and with the plugin."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import alembic
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.util import CommandError

from sqlane_sa import alembic_plugin, migrations
from sqlane_sa.queue import Queue
from sqlane_sa.values.errors import HandleError
from tests.migrations.project import OWN_FILTER

if TYPE_CHECKING:
    from conftest import Application

QUEUES = [
    Queue(),
    Queue("my_"),
    Queue("my_", "mine"),
    Queue("", "mine"),
    Queue(schema="public"),
    Queue('x"y %s 🚂', 'q"'),
]
STRICT = {"compare_type": True, "compare_server_default": True, "include_schemas": True}
PLUGIN = {**STRICT, "autogenerate_plugins": ["alembic.autogenerate.*", "sqlane_sa"]}

needs_plugins = pytest.mark.skipif(
    importlib.util.find_spec("alembic.runtime.plugins") is None, reason="plugins came with Alembic 1.18"
)


@pytest.fixture
def own() -> sa.MetaData:
    """The application's: a table that refers to nothing, and one named like a queue's in a schema of its own."""
    metadata = sa.MetaData()
    sa.Table("users", metadata, sa.Column("id", sa.Integer, primary_key=True))
    sa.Table("jobs", metadata, sa.Column("id", sa.Integer, primary_key=True))
    return metadata


@pytest.fixture
def app(application: "Application", own: sa.MetaData, empty: sa.Engine) -> "Application":
    with empty.begin() as conn:
        for schema in ("mine", 'q"'):
            conn.execute(sa.schema.CreateSchema(schema))
        own.create_all(conn)
    application.config.attributes.update(metadata=own, options=dict(STRICT))
    shutil.copy(Path(alembic.__file__).parent / "templates" / "generic" / "script.py.mako", application.folder)
    return application


def configure(app: "Application", metadata: Any = None, **options: Any) -> None:
    app.config.attributes["options"].update(options)
    if metadata is not None:
        app.config.attributes["metadata"] = metadata


def generated(app: "Application") -> str:
    """The source of a revision that autogenerate wrote, without the lines that every revision has."""
    script: Any = command.revision(app.config, autogenerate=True)
    return Path(script.path).read_text().partition("import sqlalchemy as sa\n")[2]


@pytest.mark.parametrize("queue", QUEUES)
def test_the_queues_metadata_in_the_list_makes_no_difference(
    app: "Application", empty: sa.Engine, own: sa.MetaData, queue: Queue
) -> None:
    migrations.apply(empty, queue)
    with pytest.raises(CommandError, match="remove_table"):
        command.check(app.config)
    configure(app, [own, queue.metadata])
    command.check(app.config)


@pytest.mark.parametrize("queue", QUEUES)
def test_a_filter_keeps_them_out(app: "Application", empty: sa.Engine, queue: Queue) -> None:
    others = Queue("others_")
    for one in (queue, others):
        migrations.apply(empty, one)
    filters = [{name: getattr(migrations, name)(queue, others)} for name in ("include_name", "include_object")]
    options = app.config.attributes["options"]
    for one in filters:
        app.config.attributes["options"] = {**options, **one}
        command.check(app.config)
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE mine.unknown ()")
    for one in filters:
        app.config.attributes["options"] = {**options, **one}
        with pytest.raises(CommandError, match="unknown"):
            command.check(app.config)


def test_a_filter_outside_an_environment(empty: sa.Engine, own: sa.MetaData) -> None:
    queue = Queue()
    migrations.apply(empty, queue)
    with empty.begin() as conn:
        own.create_all(conn)
        context = MigrationContext.configure(conn, opts={"include_name": migrations.include_name(queue)})
        assert compare_metadata(context, own) == []


def test_a_filter_of_the_application_beside_it(app: "Application", empty: sa.Engine) -> None:
    names: dict[str, Any] = {"migrations": migrations, "queue": Queue()}
    exec(OWN_FILTER, names)
    migrations.apply(empty, Queue())
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE spatial_ref_sys ()")
    configure(app, include_name=names["include_name"])
    command.check(app.config)


def test_a_filter_for_what_is_no_queue_is_refused() -> None:
    for make in (migrations.include_name, migrations.include_object):
        with pytest.raises(HandleError, match="a Queue is needed here, and got str"):
            make("sqlane_")


@needs_plugins
@pytest.mark.parametrize("queue", QUEUES)
def test_the_plugin_writes_a_call_that_works(
    app: "Application", empty: sa.Engine, own: sa.MetaData, queue: Queue
) -> None:
    configure(app, [own, queue.metadata], **PLUGIN)
    with pytest.raises(CommandError, match=r"'upgrade_sqlane', .* are not in the database"):
        command.check(app.config)
    source = generated(app)
    assert source.count("migrations.upgrade(to='0001'") == source.count("migrations.downgrade(from_='0001'") == 1
    assert "op." not in source
    for _ in range(2):
        app.upgrade()
        migrations.check(empty, queue)
        command.check(app.config)
        app.downgrade()
        assert migrations.current(empty, queue) is None


def test_a_queue_in_a_schema_needs_include_schemas(app: "Application", empty: sa.Engine, own: sa.MetaData) -> None:
    """As every table of another schema does. Left out of the list, it needs nothing."""
    queue = Queue(schema="mine")
    migrations.apply(empty, queue)
    configure(app, [own, queue.metadata], include_schemas=False)
    with pytest.raises(CommandError, match="add_table"):
        command.check(app.config)
    configure(app, own)
    command.check(app.config)


@needs_plugins
def test_the_plugin_needs_no_include_schemas(app: "Application", empty: sa.Engine, own: sa.MetaData) -> None:
    queue = Queue(schema="mine")
    migrations.apply(empty, queue)
    configure(app, [own, queue.metadata], **{**PLUGIN, "include_schemas": False})
    command.check(app.config)


@needs_plugins
@pytest.mark.usefixtures("two_revisions")
def test_the_plugin_serves_every_queue_in_the_list(app: "Application", empty: sa.Engine, own: sa.MetaData) -> None:
    new, old, done = Queue("new_"), Queue("old_", "mine"), Queue()
    migrations.apply(empty, old, "0001")
    migrations.apply(empty, done)
    configure(app, [queue.metadata for queue in (new, old, done)] + [own], **PLUGIN)
    lines = [line.strip() for line in generated(app).splitlines() if "migrations." in line]
    assert lines == [
        "migrations.upgrade(to='0002', prefix='new_')",
        "migrations.upgrade(to='0002', from_='0001', prefix='old_', schema='mine')",
        "migrations.downgrade(to='0001', from_='0002', prefix='old_', schema='mine')",
        "migrations.downgrade(from_='0002', prefix='new_')",
    ]
    app.upgrade()
    command.check(app.config)
    app.downgrade()
    assert [migrations.current(empty, queue) for queue in (new, old, done)] == [None, "sqlane_0001", "sqlane_0002"]


@needs_plugins
def test_the_plugin_takes_the_queue_of_the_config_where_no_metadata_is_one(app: "Application") -> None:
    configure(app, **PLUGIN)
    assert "migrations.upgrade(to='0001')" in generated(app)
    app.config.set_main_option("sqlane_prefix", "my_")
    app.upgrade()
    with pytest.raises(CommandError, match="the tables 'my_\\*' are not in the database"):
        command.check(app.config)
    app.config.attributes["sqlane_target"] = Queue()
    command.check(app.config)


@needs_plugins
def test_the_plugin_hides_nothing_of_the_application(app: "Application", empty: sa.Engine, own: sa.MetaData) -> None:
    """Its own "jobs" is a table of the default schema; the queue's is one of another."""
    queue = Queue("", "mine")
    migrations.apply(empty, queue)

    def include_object(item: Any, name: str | None, *_: Any) -> bool:
        return name != "ignored"

    configure(app, [own, queue.metadata], include_object=include_object, **PLUGIN)
    command.check(app.config)
    with empty.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE ignored ()")
        conn.exec_driver_sql("DROP TABLE jobs")
        conn.exec_driver_sql("ALTER TABLE mine.sleepers ADD later text")
    source = generated(app)
    assert source.count("op.") == 2, "it creates jobs, and drops it"
    assert "op.create_table('jobs'" in source


@needs_plugins
def test_tables_of_a_newer_version_end_it_with_one_sentence(app: "Application", empty: sa.Engine) -> None:
    configure(app, **PLUGIN)
    migrations.apply(empty, Queue())
    with empty.begin() as conn:
        conn.exec_driver_sql("UPDATE sqlane_version SET version_num = 'sqlane_9999'")
    with pytest.raises(CommandError, match=r"^the database is at revision sqlane_9999, .* install the version"):
        command.check(app.config)


@needs_plugins
def test_the_plugin_looks_where_the_queue_is(app: "Application", empty: sa.Engine) -> None:
    migrations.apply(empty, Queue())
    # Alone: Alembic's own comparison does not get along with such a map.
    configure(app, autogenerate_plugins=["sqlane_sa"])
    app.config.attributes["engine"] = empty.execution_options(schema_translate_map={None: "mine"})
    command.check(app.config)


@needs_plugins
def test_other_databases_are_none_of_its_business(app: "Application") -> None:
    configure(app, sa.MetaData(), **{**PLUGIN, "include_schemas": False})
    app.config.attributes["engine"] = sa.create_engine("sqlite://")
    command.check(app.config)


def test_alembic_is_not_burdened_by_the_plugin() -> None:
    source = (
        "import sys, alembic\n"
        "loaded = {name for name in sys.modules if name.startswith('sqlane_sa')}\n"
        "assert loaded <= {'sqlane_sa', 'sqlane_sa.alembic_plugin'}, loaded\n"
        "assert not {'sqlalchemy.orm', 'psycopg', 'ulid'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", source], check=True)


def test_the_plugin_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    alembic_plugin.setup(SimpleNamespace())  # type: ignore[arg-type]
    assert "autogenerate will not write calls of sqlane_sa.migrations" in caplog.text
