"""The store's tests: `any_conn` for what one connection shows, `engine` where there have to be two."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.drivers import *  # noqa: F403
from tests.wakeups import *  # noqa: F403


@pytest.fixture(scope="session")
def shared_engine(shared_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(shared_url)
    yield engine
    engine.dispose()


@pytest.fixture
def shared_conn(shared_engine: sa.Engine) -> Iterator[sa.Connection]:
    """As `conn`, for small tests: in the database that tests share, which saves a copy."""
    with shared_engine.connect() as conn:
        conn.begin()
        yield conn
