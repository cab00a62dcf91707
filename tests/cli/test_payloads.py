"""The commands that look never read payloads, which may be large, and nobody else's business."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.cli.conftest import Sqlane

LOOKING = [
    ("stats",),
    ("stats", "--all"),
    ("stats", "--json"),
    ("failed",),
    ("failed", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("migrate", "check"),
]


@contextmanager
def statements() -> Iterator[list[str]]:
    """All that this process sends. (In the parameters, doctor names the table whose statistics it asks for.)"""
    sent: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: object) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_no_statement_names_the_payloads(
    within: Sqlane, database_url: str, engine: sa.Engine, command: tuple[str, ...]
) -> None:
    queue = Queue()
    queue.define("n")
    with engine.begin() as conn:
        queue.enqueue(conn, "n", {"any": "payload"})
    with statements() as sent:
        assert within(*command, "--url", database_url).code == 0
    assert len(sent) > 1
    assert [statement for statement in sent if queue.tables.payloads.name in statement] == []
