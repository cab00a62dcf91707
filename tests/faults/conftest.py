from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.demo.server import Server
from sqlane_sa.migrations import apply
from tests.conftest import SETTINGS, memory_folder, new_database
from tests.faults.load import Load
from tests.support import long_run

LONG = long_run()

StartLoad = Callable[..., Load]


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that a test may stop, break and start again."""
    with Server(fsync=False, tcp=True, settings=SETTINGS, parent=memory_folder()) as server:
        yield server


@pytest.fixture
def own_url(own_server: Server) -> Iterator[str]:
    """A migrated database of the test's own server; it is there for the next test whatever this one did."""
    own_server.start()
    with migrated_database(own_server) as url:
        yield url
        own_server.start()


@contextmanager
def migrated_database(server: Server) -> Iterator[str]:
    admin = sa.create_engine(server.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with new_database(admin) as name:
        url = server.url(name, tcp=True)
        apply(sa.create_engine(url, poolclass=sa.NullPool), Queue())
        yield url


@pytest.fixture
def load(tmp_path: Path) -> Iterator[StartLoad]:
    """`load(url, **options)` starts worker processes and a producer, and returns when jobs are being done."""
    with ExitStack() as stack:

        def start(url: str, **options: Any) -> Load:
            return stack.enter_context(Load(url, tmp_path, **options))

        yield start
