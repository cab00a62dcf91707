"""Settings for the transactions of a worker: plans, and how long to wait for a lock."""

from __future__ import annotations

from sqlalchemy import Connection, text

# Every statement of the store is a handful of index probes, whatever the tables hold. A plan made while they were
# empty or never analysed may be a sequential scan, and it would stay in the driver's prepared statement as they grow.
#
# A lock is waited for a moment only: a transaction of somebody else's that stands still must not stop a worker.
#
# Psycopg reads times in the ISO style alone, and the database may have another.
#
# All settings end with the transaction, so that a pooler's server connection is handed on as it was.
_PIN = text("""
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true), set_config('lock_timeout', '1s', true),
       set_config('datestyle', 'ISO', true)""")

_BRIEFLY = text("SELECT set_config('lock_timeout', '50ms', true)")


def pin_plans(conn: Connection, /) -> None:
    """Let the rest of the transaction use index probes only, with plans made once, and wait 1 s for a lock at most."""
    conn.execute(_PIN).close()


def wait_briefly(conn: Connection, /) -> None:
    """Let the rest of the transaction wait 50 ms for a lock at most: it is known that somebody holds one."""
    conn.execute(_BRIEFLY).close()
