"""Payloads: read by id, decoded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlane_sa.schema import MAX_PAYLOAD_BYTES, Tables
from sqlane_sa.statement import BIG, TEXT, TEXTS, Statement
from sqlane_sa.values.errors import PayloadError
from sqlane_sa.values.payload import decode

INLINE_BYTES = 65_536
"""A claim brings payloads up to this size along. A batch of larger ones would fill the worker's memory: they are read
one by one, when their jobs start."""

# As text: a value that the driver could not parse would take the whole result with it.
READ = Statement(
    """
SELECT i.id, (SELECT CAST(p.payload AS text) FROM {payloads} AS p
              WHERE p.id = i.id AND octet_length(CAST(p.payload AS text)) <= :max_bytes) AS payload
FROM unnest(CAST(:ids AS text[])) AS i(id)""",
    {"ids": TEXTS, "max_bytes": BIG},
    {"id": TEXT, "payload": TEXT},
)


def read_payload_texts(
    conn: Connection, /, tables: Tables, ids: Sequence[str], *, max_bytes: int = MAX_PAYLOAD_BYTES
) -> dict[str, str]:
    """Id to JSON text, for the ids that have a payload of at most `max_bytes`."""
    rows = conn.execute(READ.on(tables), {"ids": list(ids), "max_bytes": max_bytes}) if ids else ()
    return {row.id: row.payload for row in rows if row.payload is not None}


def read_payloads(conn: Connection, /, tables: Tables, *, ids: Sequence[str]) -> dict[str, Any]:
    """Id to payload, for the ids that have one; a `PayloadError` in the place of one that cannot be decoded."""
    return {id_: _decoded(text) for id_, text in read_payload_texts(conn, tables, ids).items()}


def _decoded(text: str) -> Any:
    try:
        return decode(text)
    except PayloadError as error:
        return error
