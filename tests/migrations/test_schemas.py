"""A queue in a schema of its own: nothing leads it elsewhere, and nothing else is needed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from sqlane_sa import Queue, migrations
from sqlane_sa.values.errors import HandleError
from tests.migrations.usage import use

if TYPE_CHECKING:
    from conftest import Application

QUEUE = Queue(schema="q")
ELSEWHERE = {"q": "elsewhere", "public": "elsewhere"}


def by_apply(application: "Application", engine: sa.Engine) -> None:
    for revision in ("0001", "0002"):
        migrations.apply(engine, QUEUE, revision)


def by_call(application: "Application", engine: sa.Engine) -> None:
    application.revision("u1", None, "migrations.upgrade('0001', schema='q')")
    application.revision("u2", "u1", "migrations.upgrade('0002', '0001', schema='q')")
    application.upgrade("u1")
    application.upgrade("u2")


def by_branch(application: "Application", engine: sa.Engine) -> None:
    application.has_branch()
    application.config.attributes["sqlane_target"] = QUEUE
    application.upgrade("sqlane_0001")
    application.upgrade("heads")


@pytest.mark.usefixtures("two_revisions")
@pytest.mark.parametrize("migrate", [by_apply, by_call, by_branch])
def test_a_second_revision_changes_the_tables_of_the_schema(
    empty: sa.Engine, application: "Application", snapshot: Callable[..., set[Any]], migrate: Callable[..., None]
) -> None:
    """A column, an altered one, a constraint and an index. The same names are around."""
    with empty.begin() as conn:
        for schema in ("q", "elsewhere"):
            conn.exec_driver_sql(f"CREATE SCHEMA {schema}")
        conn.exec_driver_sql("CREATE TABLE public.sqlane_jobs ()")
        conn.exec_driver_sql("CREATE TABLE elsewhere.sqlane_jobs ()")
    others = snapshot(empty)
    mapped = empty.execution_options(schema_translate_map=ELSEWHERE)
    application.config.attributes["engine"] = mapped
    if migrate is by_branch:
        with pytest.raises(HandleError, match="packaged revisions themselves run under a schema_translate_map"):
            migrate(application, mapped)
        application.config.attributes["engine"] = empty
    migrate(application, mapped)
    with empty.connect() as conn:
        column = "SELECT column_default FROM information_schema.columns WHERE table_schema = 'q' AND column_name = %s"
        assert conn.exec_driver_sql(column, ("extra",)).scalars().all() in (["1", None], [None, "1"])
        names = conn.exec_driver_sql(
            "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'sqlane_jobs_by_extra' UNION ALL "
            "SELECT connamespace::regnamespace::text FROM pg_constraint WHERE conname = 'sqlane_jobs_extra'"
        )
        assert names.scalars().all() == ["q", "q"]
    migrations.check(empty, QUEUE)
    migrations.revert(empty, QUEUE)
    assert {row for row in snapshot(empty) if row[0] != "alembic_version"} == others


def test_a_role_without_rights_on_public_and_with_an_empty_search_path(
    empty: sa.Engine, new_role: Callable[[], str]
) -> None:
    role = new_role()
    with empty.begin() as conn:
        conn.exec_driver_sql("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        conn.exec_driver_sql(f"CREATE SCHEMA q AUTHORIZATION {role}")
        conn.exec_driver_sql(f"ALTER ROLE {role} SET search_path = ''")
    engine = sa.create_engine(empty.url.set(username=role, password="sqlane"))
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SHOW search_path").scalar() == '""'
        with pytest.raises(ProgrammingError, match="permission denied for schema public"):
            conn.exec_driver_sql("CREATE TABLE public.no ()")
    migrations.apply(engine, QUEUE)
    migrations.check(engine, QUEUE)
    use(engine, QUEUE)
    migrations.revert(engine, QUEUE)
    engine.dispose()
