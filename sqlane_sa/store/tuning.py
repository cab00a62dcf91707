"""Planner settings for the transactions of a worker."""

from __future__ import annotations

from sqlalchemy import Connection, text

# Every statement of the store is a handful of index probes, whatever the tables hold. A plan made while they were
# empty or never analysed may be a sequential scan, and it would stay in the driver's prepared statement as they grow.
# They end with the transaction, so that a pooler's server connection is handed on as it was.
_PIN = text("""
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true)""")


def pin_plans(conn: Connection, /) -> None:
    """Let the rest of the transaction use index probes only, with plans made once."""
    conn.execute(_PIN).close()
