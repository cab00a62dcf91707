"""SQL text with typed binds and named columns, rendered once for the tables of each queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Dialect,
    Integer,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    text,
)
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.types import TypeEngine

from sqlane_sa.schema import Tables

Types = Mapping[str, TypeEngine[Any]]


def array_literal(items: Iterable[str | int | None]) -> str:
    """The text form of a PostgreSQL array."""
    return "{" + ",".join(["NULL" if item is None else _quoted(item) for item in items]) + "}"


def _quoted(item: str | int) -> str:
    if isinstance(item, int):
        return str(item)
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Array(TypeDecorator[Sequence[Any]]):
    """An array of strings or integers, sent as one text by every driver; the statement casts it.

    Faster than a list, and pg8000 takes a "null" in a list for NULL. What comes back is a list already.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[str | int | None] | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        literal = array_literal(value)
        # A lone surrogate is refused here: on its way out it would leave pg8000 out of step with the server.
        literal.encode()
        return literal


TEXT: TypeEngine[str] = Text()
SMALL: TypeEngine[int] = SmallInteger()
INT: TypeEngine[int] = Integer()
BIG: TypeEngine[int] = BigInteger()
BOOL: TypeEngine[bool] = Boolean()
TEXTS: TypeEngine[Sequence[str]] = Array()
INTS: TypeEngine[Sequence[int]] = Array()
BIGS: TypeEngine[Sequence[int]] = Array()

_TABLE = re.compile(r"\{(jobs|payloads|mutexes|waits|sleepers)\}")

# A dialect that does not double percent signs: text() doubles them for the drivers that need it.
_preparer = PGDialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]


def table_name(table: Table) -> str:
    """The name as SQL has it: quoted where it has to be, with its schema."""
    return _preparer.format_table(table)


def qualified(name: str, tables: Tables) -> str:
    """The name of something else of the queue, such as an index, in the same form."""
    quoted = _preparer.quote(name)
    return quoted if tables.schema is None else f"{_preparer.quote_schema(tables.schema)}.{quoted}"


class Statement:
    """One statement of the store.

    `{jobs}`, `{payloads}`, `{mutexes}`, `{waits}` and `{sleepers}` in the SQL stand for the queue's tables. `columns`
    names and types what comes back, so that neither the order of the SELECT list nor a new column swaps values.
    """

    def __init__(self, sql: str, binds: Types, columns: Types | None = None) -> None:
        self.sql = sql
        self.binds = binds
        self.columns = columns

    def on(self, tables: Tables) -> TextClause | TextualSelect:
        """The statement for these tables: rendered at the first call, the same object ever after."""
        rendered: dict[Statement, TextClause | TextualSelect] = tables.rendered
        statement = rendered.get(self)
        if statement is None:
            statement = rendered[self] = self._render(tables)
        return statement

    def _render(self, tables: Tables) -> TextClause | TextualSelect:
        def name(found: re.Match[str]) -> str:
            # text() reads a colon as the start of a bind: one inside an identifier has to be escaped.
            return table_name(getattr(tables, found[1])).replace(":", "\\:")

        # In one pass: a prefix may be "{waits}".
        sql = _TABLE.sub(name, self.sql)
        clause = text(sql).bindparams(*(bindparam(name, type_=type_) for name, type_ in self.binds.items()))
        return clause if self.columns is None else clause.columns(**self.columns)
