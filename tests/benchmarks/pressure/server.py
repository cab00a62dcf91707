"""A server and a migrated database for one part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.demo.server import Server
from tests.benchmarks.ground import own_database


@contextmanager
def database(server: Server) -> Iterator[tuple[str, sa.Engine]]:
    """Its URL and an engine on it; dropped at the end."""
    with own_database(server.url()) as engine:
        migrations.apply(engine, Queue())
        yield engine.url.render_as_string(hide_password=False), engine
