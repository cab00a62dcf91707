from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.performance.usage import no_autovacuum
from tests.performance.wire import Wire


@pytest.fixture
def counts(database_url: str, engine: sa.Engine) -> Iterator[sa.Engine]:
    """To ask what was used: it has no connections between the questions, and nothing is vacuumed or analysed."""
    with engine.begin() as conn:
        no_autovacuum(conn)
    engine.dispose()
    admin = sa.create_engine(database_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    yield admin


@pytest.fixture
def wire(database_url: str) -> Iterator[Wire]:
    with Wire(database_url) as wire:
        yield wire
