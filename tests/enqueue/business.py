"""What an application writes beside its jobs, and what others see of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


SEEN = """SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM sqlane_jobs),
    (SELECT count(*) FROM sqlane_payloads), (SELECT count(*) FROM sqlane_waits)"""

NOTHING = (0, 0, 0, 0)


def seen(engine: sa.Engine) -> tuple[int, ...]:
    """What is committed: orders, jobs, payloads, places in lines."""
    with engine.connect() as conn:
        return tuple(conn.execute(sa.text(SEEN)).one())


@contextmanager
def sql_sent(engine: sa.Engine) -> Iterator[list[str]]:
    """The SQL of the block, savepoints included."""
    sent: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *more: Any) -> None:
        sent.append(statement)

    def note_savepoint(conn: Any, name: str, *more: Any) -> None:
        sent.append(f"savepoint {name}")

    events = {
        "before_cursor_execute": note,
        "savepoint": note_savepoint,
        "release_savepoint": note_savepoint,
        "rollback_savepoint": note_savepoint,
    }
    for event, listener in events.items():
        sa.event.listen(engine, event, listener)
    try:
        yield sent
    finally:
        for event, listener in events.items():
            sa.event.remove(engine, event, listener)
