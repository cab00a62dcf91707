"""A PostgreSQL server per test process, and for each test a database of its own, copied from a migrated one."""

from __future__ import annotations

import compileall
import logging
import os
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

import sqlane_sa
from sqlane_sa import Queue
from sqlane_sa.demo.server import Server
from tests.hangs import HangWatch

# A small log: the data may be in memory.
SETTINGS = {"full_page_writes": False, "max_connections": 200, "max_wal_size": "256MB"}

PACKAGE = Path(sqlane_sa.__file__).parent
RUN_IN_PROCESSES = (PACKAGE, PACKAGE.parent / "alembic", Path(__file__).parent / "faults")

# Where PYTHONDONTWRITEBYTECODE is set, pytest would rewrite the assertions of all tests in each process of each run.
# Until they are collected only: what a test writes and imports is as new as it was written.
_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: one that came last would run alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _NO_BYTECODE


def pytest_configure(config: pytest.Config) -> None:
    """Where PYTHONDONTWRITEBYTECODE is set, each process that a test starts would compile the package: a fifth of a
    second each. Once, before the processes of xdist."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        config.pluginmanager.register(HangWatch(config))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
        for folder in filter(Path.is_dir, RUN_IN_PROCESSES):
            compileall.compile_dir(folder, quiet=2)


class FailuresAtOnce:
    """A plugin that names each failure when it happens: a run that somebody ends has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and terminal:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr)
            terminal.write_line(f"\n{report.nodeid} ({report.when}): {why.partition(chr(10))[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With SQLANE_EVERY_TEST=1 nothing is skipped for a program that could be installed: that fails."""
    report = yield
    if report.skipped and "is missing; apt-get install" in str(report.longrepr) and os.environ.get("SQLANE_EVERY_TEST"):
        report.outcome = "failed"
    return report


@pytest.fixture(autouse=True)
def loggers_stay_enabled() -> Iterator[None]:
    """The `fileConfig` of an env.py disables the loggers that exist, and a later test would miss what they say."""
    yield
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("sqlane_sa")]
    disabled = [logger for logger in loggers if logger.disabled]
    for logger in disabled:
        logger.disabled = False
    assert not disabled, f"the test left {disabled} disabled; give fileConfig disable_existing_loggers=False"


class GivenServer:
    """The server of SQLANE_TEST_DATABASE_URL, whose user may create databases."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url)

    def url(self, database: str | None = None, *, tcp: bool = False) -> str:
        at = self._url if database is None else self._url.set(database=database)
        return at.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def server() -> Iterator[Server | GivenServer]:
    """With `server.url(database, tcp=True)`; a test that stops or restarts a server starts one of its own."""
    given = os.environ.get("SQLANE_TEST_DATABASE_URL")
    if given:
        yield GivenServer(given)
        return
    with Server(fsync=False, tcp=True, settings=SETTINGS, parent=memory_folder()) as own:
        yield own


def memory_folder() -> Path | None:
    """Memory instead of a disk, where there is enough: a database is then copied in a tenth of the time."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        return None
    room = os.statvfs(folder)
    # A server of root's may need a copy of the programs there.
    runs_programs = not room.f_flag & os.ST_NOEXEC
    return folder if runs_programs and room.f_bavail * room.f_frsize > 2 << 30 else None


@pytest.fixture(scope="session")
def admin(server: Server | GivenServer) -> Iterator[sa.Engine]:
    """In autocommit, and with one connection: what creates and drops databases."""
    engine = sa.create_engine(server.url(), isolation_level="AUTOCOMMIT", pool_size=1)
    yield engine
    engine.dispose()


@contextmanager
def new_database(admin: sa.Engine, template: str = "template1") -> Iterator[str]:
    """The name of a database that is there within the block, and dropped with all its connections after it."""
    name = f"sqlane_test_{uuid.uuid4().hex}"
    with admin.connect() as conn:
        # A copy of files takes half the time of one through the log, which is the default where there is a choice.
        strategy = " STRATEGY file_copy" if (conn.dialect.server_version_info or (0,)) >= (15,) else ""
        conn.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {template}{strategy}")
    try:
        yield name
    finally:
        with admin.connect() as conn:
            conn.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def template_url(server: Server | GivenServer, admin: sa.Engine) -> Iterator[str]:
    """The URL of the migrated database that each test's own is copied from; nobody may stay connected to it."""
    from sqlane_sa import migrations

    with new_database(admin) as name:
        url = server.url(name, tcp=True)
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        migrations.apply(engine, Queue())
        yield url


@pytest.fixture
def database_url(server: Server | GivenServer, admin: sa.Engine, template_url: str) -> Iterator[str]:
    """A migrated database, this test's alone. Over TCP, which every driver understands."""
    with new_database(admin, str(sa.make_url(template_url).database)) as name:
        yield server.url(name, tcp=True)


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def conn(engine: sa.Engine) -> Iterator[sa.Connection]:
    """In a transaction that is rolled back."""
    with engine.connect() as conn:
        conn.begin()
        yield conn
