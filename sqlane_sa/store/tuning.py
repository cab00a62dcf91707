"""The transactions of a worker: their plans, how long they wait for a lock, and the end of those left behind."""

from __future__ import annotations

from sqlalchemy import Connection, Double, Integer, bindparam, text

from sqlane_sa.statement import INT
from sqlane_sa.values.duration import to_ms

IDLE_LIMIT = """
    set_config('idle_in_transaction_session_timeout', CASE
        WHEN CAST(current_setting('idle_in_transaction_session_timeout') AS interval)
             BETWEEN interval '1 ms' AND coalesce(CAST(:idle_ms AS integer) * interval '1 ms', interval '0')
            OR CAST(:idle_ms AS integer) IS NULL
        THEN current_setting('idle_in_transaction_session_timeout')
        ELSE CAST(CAST(:idle_ms AS integer) AS text) END, true)"""
"""For the rest of the transaction: the server's wait for its next statement, unless a shorter one is set."""
_IDLE_MS = bindparam("idle_ms", type_=INT)

# Every statement of the store is a handful of index probes, whatever the tables hold. A plan made while they were
# empty or never analysed may be a sequential scan, and it would stay in the driver's prepared statement as they grow.
#
# A lock is waited for a moment only: a transaction of somebody else's that stands still must not stop a worker.
#
# Psycopg reads times in the ISO style alone, and the database may have another.
#
# A process that stands still (paused, or its machine) keeps what it has locked: its jobs cannot be taken back. The
# server ends such a session, sooner where the application has chosen so.
#
# The settings end with the transaction, so that a pooler's server connection is handed on as it was; on a session of
# our own they stay.
_SETTINGS = """
SELECT set_config('jit', 'off', LOCAL), set_config('enable_seqscan', 'off', LOCAL),
       set_config('enable_hashjoin', 'off', LOCAL), set_config('enable_mergejoin', 'off', LOCAL),
       set_config('plan_cache_mode', 'force_generic_plan', LOCAL), set_config('lock_timeout', '1s', LOCAL),
       set_config('datestyle', 'ISO', LOCAL), """ + IDLE_LIMIT.replace("true", "LOCAL")
_PIN = text(_SETTINGS.replace("LOCAL", "true")).bindparams(_IDLE_MS)
# Statements in autocommit take the session's isolation level.
_PIN_SESSION = text(
    _SETTINGS.replace("LOCAL", "false") + ", set_config('default_transaction_isolation', 'read committed', false)"
).bindparams(_IDLE_MS)

_BRIEFLY = text("SELECT set_config('lock_timeout', '50ms', true)")

# The process may be another session's by now: a server that was restarted begins its numbers anew. Behind a pooler, or
# where addresses are translated, the session is not found.
_END_SESSION = text("""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = :pid AND client_port = :port AND datname = current_database() AND usename = session_user
  AND pid <> pg_backend_pid()
  AND abs(extract(epoch FROM statement_timestamp() - backend_start) - :age) < 5""").bindparams(
    bindparam("pid", type_=Integer), bindparam("port", type_=Integer), bindparam("age", type_=Double)
)


def pin_plans(conn: Connection, /, *, idle_limit: float | None = None) -> None:
    """Let the rest of the transaction use index probes only, with plans made once, and wait 1 s for a lock at most.

    The server ends the session when it hears nothing within the transaction for `idle_limit` seconds (None: as set).
    """
    conn.execute(_PIN, {"idle_ms": idle_ms(idle_limit)}).close()


def pin_session(conn: Connection, /, *, idle_limit: float | None = None) -> None:
    """The same for all of the session, once committed: one that nobody else uses; and READ COMMITTED in autocommit."""
    conn.execute(_PIN_SESSION, {"idle_ms": idle_ms(idle_limit)}).close()


def idle_ms(idle_limit: float | None) -> int | None:
    return None if idle_limit is None else to_ms(idle_limit)


def wait_briefly(conn: Connection, /) -> None:
    """Let the rest of the transaction wait 50 ms for a lock at most: it is known that somebody holds one."""
    conn.execute(_BRIEFLY).close()


def end_session(conn: Connection, /, *, pid: int, port: int, age: float) -> bool:
    """End another session of the same role and database, by its process id, the port of its client (-1: a socket of the
    file system) and its age in seconds, give or take 5; whether it was there."""
    return bool(conn.execute(_END_SESSION, {"pid": pid, "port": port, "age": age}).all())
