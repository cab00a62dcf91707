"""SQL text with typed binds and named columns, rendered once for the tables of each queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Boolean, Integer, SmallInteger, Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.types import TypeEngine

from sqlane_sa.schema import Tables

Types = Mapping[str, TypeEngine[Any]]

TEXT: TypeEngine[str] = Text()
SMALL: TypeEngine[int] = SmallInteger()
INT: TypeEngine[int] = Integer()
BIG: TypeEngine[int] = BigInteger()
BOOL: TypeEngine[bool] = Boolean()
TEXTS: TypeEngine[Sequence[str]] = ARRAY(Text())
INTS: TypeEngine[Sequence[int]] = ARRAY(Integer())
BIGS: TypeEngine[Sequence[int]] = ARRAY(BigInteger())

# A dialect that does not double percent signs: text() doubles them for the drivers that need it.
_preparer = PGDialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]


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
        sql = self.sql
        for name in ("jobs", "payloads", "mutexes", "waits", "sleepers"):
            table = getattr(tables, name)
            # text() reads a colon as the start of a bind: one inside an identifier has to be escaped.
            sql = sql.replace("{" + name + "}", _preparer.format_table(table).replace(":", "\\:"))
        clause = text(sql).bindparams(*(bindparam(name, type_=type_) for name, type_ in self.binds.items()))
        return clause if self.columns is None else clause.columns(**self.columns)
