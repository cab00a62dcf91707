"""Rules that every statement of the store keeps."""

import importlib
import pkgutil
import re

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.statement import Statement


def all_statements() -> dict[str, Statement]:
    found = {}
    for info in pkgutil.iter_modules(store.__path__):
        module = importlib.import_module(f"sqlane_sa.store.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, Statement):
                found.setdefault(value, f"{info.name}.{name}")
    return {name: statement for statement, name in found.items()}


STATEMENTS = all_statements()
NAMES = sorted(STATEMENTS)


def code(statement: Statement) -> str:
    """Without comments and literals."""
    return re.sub(r"--[^\n]*|'[^']*'", "", statement.sql)


def test_all_were_found() -> None:
    assert len(NAMES) >= 25
    assert {"insert.INSERT_NEW", "claim.CLAIM_PLAIN", "finish.COMPLETE", "recovery.LOCK_STALE"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_time_of_the_statement(name: str) -> None:
    """now() stands still in a transaction, and clock_timestamp() can be no index bound."""
    forbidden = r"\b(now\s*\(|clock_timestamp|transaction_timestamp|current_timestamp|localtimestamp|current_date)"
    assert not re.search(forbidden, code(STATEMENTS[name]), re.I)
    assert not re.search(r"\btimeofday\b|\brandom\b", code(STATEMENTS[name]), re.I)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_column_comes_back_from_none(name: str) -> None:
    """A star over a table would break prepared statements and swap values; one over a CTE of ours is fixed."""
    sql = code(STATEMENTS[name])
    assert not re.search(r"returning\s+(\w+\.)?\*", sql, re.I)
    for alias in re.findall(r"(\w+)\.\*", sql):
        assert re.search(rf"FROM (?!\{{)\w+ AS {alias}\b", sql), alias
    assert not re.search(r"select\s+\*", sql, re.I)


@pytest.mark.parametrize("name", NAMES)
def test_every_bind_and_every_column_has_a_type(name: str, queue: Queue) -> None:
    statement = STATEMENTS[name]
    rendered = statement.on(queue.tables)
    clause = rendered.element if isinstance(rendered, sa.TextualSelect) else rendered
    assert set(re.findall(r"(?<![:\w]):(\w+)", code(statement))) == set(statement.binds) == set(clause._bindparams)
    columns = list((statement.columns or {}).values())
    for kind in [bind.type for bind in clause._bindparams.values()] + columns:
        assert not isinstance(kind, sa.types.NullType)


@pytest.mark.parametrize("name", NAMES)
def test_arrays_are_cast(name: str) -> None:
    """They are sent as text."""
    statement = STATEMENTS[name]
    for bind, kind in statement.binds.items():
        if type(kind).__name__ == "Array":
            uses = len(re.findall(rf":{bind}\b", code(statement)))
            assert (
                uses
                == len(re.findall(rf"CAST\(:{bind} AS (?:text|integer|bigint|timestamptz)\[\]\)", code(statement)))
                > 0
            )


@pytest.mark.parametrize("name", NAMES)
def test_no_cast_that_text_would_take_for_a_bind(name: str) -> None:
    assert "::" not in STATEMENTS[name].sql
    assert "%" not in STATEMENTS[name].sql


@pytest.mark.parametrize("name", NAMES)
def test_rows_come_back_in_the_order_of_the_columns(name: str, shared_conn: sa.Connection, queue: Queue) -> None:
    statement = STATEMENTS[name]
    if statement.columns is None:
        return
    sql = statement.on(queue.tables).element.text
    nothing = dict.fromkeys(statement.binds)
    result = shared_conn.execute(
        sa.text(sql).bindparams(*(sa.bindparam(k, type_=t) for k, t in statement.binds.items())), nothing
    )
    assert list(result.keys()) == list(statement.columns)


def test_a_statement_is_rendered_once_per_queue(queue: Queue) -> None:
    statement = STATEMENTS["finish.COMPLETE"]
    assert statement.on(queue.tables) is statement.on(queue.tables)
    assert statement.on(queue.tables) is not statement.on(Queue("other_").tables)
