"""SQL text with typed binds and named columns, rendered once for the tables of each queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2s
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Dialect,
    Integer,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    column,
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
    items = tuple(items)
    try:
        # All at once, marked off by what no text in PostgreSQL holds: a call for each item takes five times as long.
        joined = "\0".join(items)  # type: ignore[arg-type]
    except TypeError:  # integers or None among them
        joined = ""
    if joined.count("\0") != len(items) - 1 or not joined:
        return "{" + ",".join(["NULL" if item is None else _quoted(item) for item in items]) + "}"
    return '{"' + joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


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
        if not literal.isascii():
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

_PERCENT = re.compile(r"%%|%\((\w+)\)s")
_TABLE = re.compile(r"\{(jobs|payloads|mutexes|waits|sleepers|version)\}")

# A dialect that does not double percent signs: text() doubles them for the drivers that need it.
_preparer = PGDialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]


def table_name(table: Table) -> str:
    """The name as SQL has it: quoted where it has to be, with its schema."""
    return _preparer.format_table(table)


def qualified(name: str, tables: Tables) -> str:
    """The name of something else of the queue, such as an index, in the same form."""
    quoted = _preparer.quote(name)
    return quoted if tables.schema is None else f"{_preparer.quote_schema(tables.schema)}.{quoted}"


class Numbered(NamedTuple):
    """A statement as the server's own protocol has it: a name for a session to keep it under, SQL with $1 and on, and
    the names of the values in that order."""

    name: str
    sql: str
    order: tuple[str, ...]


class Statement:
    """One statement of the store.

    `{jobs}`, `{payloads}`, `{mutexes}`, `{waits}`, `{sleepers}` and `{version}` in the SQL are the tables of the queue.
    `columns` names and types what comes back, in the order of the SELECT list: only by their places does SQLAlchemy
    keep what it has found out about a result, instead of matching the names again at each call.
    """

    def __init__(self, sql: str, binds: Types, columns: Types | None = None) -> None:
        self.sql = sql
        self.binds = binds
        self.columns = columns

    def on(self, tables: Tables) -> TextClause | TextualSelect:
        """The statement for these tables: rendered at the first call, the same object ever after."""
        statement: TextClause | TextualSelect | None = tables.rendered.get(self)
        if statement is None:
            statement = tables.rendered[self] = self._render(tables)
        return statement

    def write(self, conn: Connection, tables: Tables, parameters: Mapping[str, Any]) -> None:
        """Execute it as the driver's own SQL: in half of the time that SQLAlchemy takes to bind a dozen values.

        For statements that return no rows and whose binds are strings and integers, which every driver takes as they
        are.
        """
        sql, order = self.driver_sql(conn.dialect, tables)
        for value in parameters.values():
            if isinstance(value, str) and not value.isascii():
                value.encode()  # see Array
        conn.exec_driver_sql(sql, parameters if order is None else tuple([parameters[name] for name in order]))

    def driver_sql(self, dialect: Dialect, tables: Tables) -> tuple[str, tuple[str, ...] | None]:
        """The SQL for a driver, and the names of its values in their order where that is what it counts by."""
        key = (self, type(dialect), dialect.paramstyle)
        ready: tuple[str, tuple[str, ...] | None] | None = tables.rendered.get(key)
        if ready is None:
            compiled = self.on(tables).compile(dialect=dialect)
            order = None if compiled.positiontup is None else tuple(compiled.positiontup)
            ready = tables.rendered[key] = (str(compiled), order)
        return ready

    def numbered(self, tables: Tables) -> Numbered:
        key = (self, Numbered)
        ready: Numbered | None = tables.rendered.get(key)
        if ready is None:
            # Not "numeric_dollar", which takes a prefix such as "%(id)s" for a parameter: here its percent sign is
            # doubled.
            compiled = self.on(tables).compile(dialect=PGDialect(paramstyle="pyformat"))  # type: ignore[no-untyped-call]
            places: dict[str, str] = {}
            sql = _PERCENT.sub(
                lambda found: places.setdefault(found[1], f"${len(places) + 1}") if found[1] else "%", str(compiled)
            )
            digest = blake2s(sql.encode(), digest_size=8).hexdigest()
            ready = tables.rendered[key] = Numbered(f"sqlane_{digest}", sql, tuple(places))
        return ready

    def _render(self, tables: Tables) -> TextClause | TextualSelect:
        def name(found: re.Match[str]) -> str:
            # text() reads a colon as the start of a bind: one inside an identifier has to be escaped.
            return table_name(getattr(tables, found[1])).replace(":", "\\:")

        # Without the indentation: psycopg takes one of more than 4096 characters apart at each call.
        short = "\n".join(line.strip() for line in self.sql.splitlines())
        # In one pass: a prefix may be "{waits}".
        sql = _TABLE.sub(name, short)
        clause = text(sql).bindparams(*(bindparam(name, type_=type_) for name, type_ in self.binds.items()))
        if self.columns is None:
            return clause
        return clause.columns(*(column(name, type_) for name, type_ in self.columns.items()))
