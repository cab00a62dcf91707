"""What a queue's tables hold, as a value in which ids, tokens and times are only what they are to each other."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TIMESTAMP

from sqlane_sa.schema import Tables

State = dict[str, list[dict[str, Any]]]

SOON = 200
"""Seconds. Times up to then are "soon", and others "later": the two differ whatever time a test takes."""

_PLACE = (
    "CASE WHEN {0} IS NULL THEN NULL WHEN {0} <= statement_timestamp() THEN 'past'"
    f" WHEN {{0}} <= statement_timestamp() + interval '{SOON} seconds' THEN 'soon' ELSE 'later' END AS {{0}}"
)


class States:
    """Reads and clears the tables of one queue."""

    def __init__(self, tables: Tables) -> None:
        named = (tables.jobs, tables.payloads, tables.mutexes, tables.waits, tables.sleepers)
        rows = ", ".join(f"(SELECT json_agg(t) FROM ({_select(table)}) AS t)" for table in named)
        self._names = [table.name.removeprefix(tables.prefix) for table in named]
        self._read = "SELECT " + rows
        self._clear = "; ".join(f"DELETE FROM {table.name}" for table in named)

    def read(self, conn: sa.Connection) -> State:
        """All rows of the tables, in order; the n-th id is "job n", the n-th token "token n"."""
        found = conn.exec_driver_sql(self._read).one()
        state = {name: rows or [] for name, rows in zip(self._names, found, strict=True)}
        return json.loads(_anonymous(json.dumps(state), state))  # type: ignore[no-any-return]

    def clear(self, conn: sa.Connection) -> None:
        conn.exec_driver_sql(self._clear)


def _select(table: sa.Table) -> str:
    shown = [_PLACE.format(one.name) if isinstance(one.type, TIMESTAMP) else one.name for one in table.c]
    order = ", ".join(f"{table.name}.{one.name}" for one in table.primary_key)
    return f"SELECT {', '.join(shown)} FROM {table.name} ORDER BY {order}"


def _anonymous(text: str, state: State) -> str:
    """Ids in the order of their making; tokens in the order in which they are met."""
    ids = sorted({row["id"] for row in state["jobs"] + state["payloads"]})
    tokens = dict.fromkeys(row["lock_token"] for row in state["jobs"] + state["mutexes"] if row["lock_token"])
    for n, id_ in enumerate(ids, 1):
        text = text.replace(id_, f"job {n}")
    for n, token in enumerate(tokens, 1):
        text = text.replace(token, f"token {n}")
    return text
