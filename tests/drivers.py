"""`any_conn`: one test, run on a Connection of each driver. A conftest.py that imports all of this module offers it.

The transaction is rolled back, in a migrated database that these tests share. On asyncpg the test itself runs inside
`AsyncConnection.run_sync`, as an application's synchronous code would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from tests.conftest import new_database
from tests.support import with_driver

__all__ = ["any_conn", "pytest_pyfunc_call", "run_with_driver", "shared_url"]

DRIVERS = ("psycopg", "psycopg2", "asyncpg", "pg8000")

Run = Callable[[Callable[[sa.Connection], object]], None]


@pytest.fixture(scope="session")
def shared_url(server: Any, admin: sa.Engine, template_url: str) -> Iterator[str]:
    """A migrated database in which nothing is ever committed."""
    with new_database(admin, str(sa.make_url(template_url).database)) as name:
        yield server.url(name, tcp=True)


@pytest.fixture(scope="session", params=DRIVERS)
def run_with_driver(request: pytest.FixtureRequest, shared_url: str) -> Iterator[Run]:
    """Runs a function on a Connection of the driver, in a transaction that is rolled back."""
    url = with_driver(shared_url, request.param)
    make = _async_run if request.param == "asyncpg" else _sync_run
    yield from make(url)


@pytest.fixture
def any_conn(run_with_driver: Run) -> Run:
    """For the test a `Connection`: `pytest_pyfunc_call` puts it in this one's place."""
    return run_with_driver


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    run = pyfuncitem.funcargs.get("any_conn")
    if run is None:
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run(lambda conn: pyfuncitem.obj(**{**wanted, "any_conn": conn}))
    return True


def _sync_run(url: str) -> Iterator[Run]:
    engine = sa.create_engine(url)

    def run(body: Callable[[sa.Connection], object]) -> None:
        with engine.connect() as conn:
            conn.begin()
            body(conn)

    yield run
    engine.dispose()


def _async_run(url: str) -> Iterator[Run]:
    engine = create_async_engine(url)

    async def run_async(body: Callable[[sa.Connection], object]) -> None:
        async with engine.connect() as conn:
            await conn.begin()
            await conn.run_sync(body)

    with asyncio.Runner() as runner:
        yield lambda body: runner.run(run_async(body))
        runner.run(engine.dispose())
