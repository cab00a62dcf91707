"""That nothing is left out: each function of the store that the worker or the queue calls is cut, or excepted here."""

from __future__ import annotations

import ast
import inspect
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import sqlane_sa
from sqlane_sa import store
from tests.faults.enqueues import CALLER
from tests.faults.operations import WORKER
from tests.faults.subjects import new_queue

PACKAGE = Path(sqlane_sa.__file__).parent
CALLING = [*PACKAGE.glob("worker/*.py"), PACKAGE / "queue.py"]
SETTING = "settings of a session or of the rest of a transaction, sent by Database before what is cut; writes no row"
EXCEPTED = {
    "pin_plans": SETTING,
    "pin_session": SETTING,
    "end_session": "ends the session of a connection that was lost; writes no row, and may be done again",
}
COMMITTING = ("complete_in_handler", "complete_in_handler_alone")
OWN_WAY = [one for one in WORKER + CALLER if one.by != "async caller" and one.name not in COMMITTING]
"""What needs no event loop, nor an engine of the worker's: the others call the same functions of the store."""


def called() -> set[str]:
    """The functions of the store that the worker and the queue name, by whatever import."""
    names: set[str] = set()
    for path in CALLING:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "store":
                names.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlane_sa.store"):
                names.update(alias.name for alias in node.names)
    return {name for name in names if inspect.isfunction(getattr(store, name, None))}


def test_each_function_of_the_store_is_cut(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: set[str] = set()
    running = False

    def recorded(name: str) -> Any:
        function = getattr(store, name)

        @wraps(function)
        def record(*args: Any, **kwargs: Any) -> Any:
            if running:
                cut.add(name)
            return function(*args, **kwargs)

        return record

    for name in called():
        monkeypatch.setattr(store, name, recorded(name))
    queue = new_queue()
    for operation in OWN_WAY:
        with engine.connect() as conn, conn.begin() as transaction:
            subject = operation.prepare(conn, queue)
            running = True
            operation.run(conn, queue, subject)
            running = False
            transaction.rollback()
    assert called() - cut == set(EXCEPTED)
