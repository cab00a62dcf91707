"""What the statements of a turn cost, in pages touched: a figure that no neighbour on the machine changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.statement import Statement
from sqlane_sa.store.claim import CLAIM_PLAIN, starting
from sqlane_sa.store.probe import PROBE
from tests.benchmarks.pressure.load import definitions

CLAIM = starting([("plain", 0, 20)], {}, lock_token="t", locked_by="w", lease=60.0)


def probe(engine: sa.Engine) -> int:
    """Pages touched by a probe."""
    return _buffers(engine, PROBE, {})


def claim(engine: sa.Engine) -> int:
    """Pages touched by the claim of at most 20 jobs, which is rolled back."""
    return _buffers(engine, CLAIM_PLAIN, CLAIM)


def _buffers(engine: sa.Engine, statement: Statement, parameters: dict[str, Any]) -> int:
    sql = str(statement.on(definitions().tables))
    clause = sa.text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql)
    clause = clause.bindparams(*(sa.bindparam(bind, type_=kind) for bind, kind in statement.binds.items()))
    with engine.connect() as conn:
        store.pin_plans(conn)
        (plan,) = conn.execute(clause, parameters).scalar_one()
        conn.rollback()
    top = plan["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
