"""A database whose encoding cannot hold every text: results are kept all the same, with escapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Discard, Queue, Worker, migrations, store
from tests.conftest import new_database
from tests.worker.conftest import SHORT


@pytest.fixture
def narrow(server: Any, admin: sa.Engine, queue: Queue) -> Iterator[sa.Engine]:
    """An engine on a migrated database that holds Western European letters only."""
    with new_database(admin, "template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'") as name:
        engine = sa.create_engine(server.url(name, tcp=True))
        migrations.apply(engine, queue)
        yield engine
        engine.dispose()


def test_errors_keep_their_text_and_their_meaning(queue: Queue, narrow: sa.Engine) -> None:
    """A Discard is one, and not a failed attempt that is repeated until they are used up."""
    runs: list[str] = []

    @queue.job("refuse", max_attempts=5)
    def refuse(payload: object) -> None:
        runs.append("refuse")
        raise Discard("нет такого")

    @queue.job("break", max_attempts=2, backoff=lambda attempt: 0.0, failure_job="after")
    def break_(payload: object) -> None:
        runs.append("break")
        raise ValueError("нет €")

    @queue.job("after")
    def after(payload: Any) -> None:
        runs.append(payload["error"]["message"])

    with narrow.begin() as conn:
        ids = [queue.enqueue(conn, name).id for name in ("refuse", "break")]
    Worker(narrow, queue, **SHORT).run_until_idle()
    with narrow.connect() as conn:
        refused, broken = (store.get(conn, queue.tables, id=id_) for id_ in ids)
    assert refused is not None and broken is not None
    assert (refused.status, broken.status) == ("failed", "failed")
    escaped = r"\u043d\u0435\u0442 \u20ac"
    assert runs.count("refuse") == 1 and runs.count("break") == 2 and len(runs) == 4
    assert refused.last_error["message"] == r"\u043d\u0435\u0442 \u0442\u0430\u043a\u043e\u0433\u043e"
    assert broken.last_error["message"] == escaped
    assert runs[-1] == escaped
