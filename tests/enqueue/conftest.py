"""The tests of enqueue: `any_conn` for what every driver has to do alike, and a business table beside the queue's."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.drivers import *  # noqa: F403
from tests.enqueue.business import Base
from tests.wakeups import *  # noqa: F403


@pytest.fixture
def engine(engine: sa.Engine) -> sa.Engine:
    """With the business table."""
    Base.metadata.create_all(engine)
    return engine
