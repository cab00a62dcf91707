"""The transactions of a worker: their plans, how long they wait for a lock, and the end of those left behind."""

from __future__ import annotations

from sqlalchemy import Connection, Double, Integer, bindparam, text

# Every statement of the store is a handful of index probes, whatever the tables hold. A plan made while they were
# empty or never analysed may be a sequential scan, and it would stay in the driver's prepared statement as they grow.
#
# A lock is waited for a moment only: a transaction of somebody else's that stands still must not stop a worker.
#
# Psycopg reads times in the ISO style alone, and the database may have another.
#
# The settings end with the transaction, so that a pooler's server connection is handed on as it was; on a session of
# our own they stay.
_SETTINGS = """
SELECT set_config('jit', 'off', LOCAL), set_config('enable_seqscan', 'off', LOCAL),
       set_config('enable_hashjoin', 'off', LOCAL), set_config('enable_mergejoin', 'off', LOCAL),
       set_config('plan_cache_mode', 'force_generic_plan', LOCAL), set_config('lock_timeout', '1s', LOCAL),
       set_config('datestyle', 'ISO', LOCAL)"""
_PIN = text(_SETTINGS.replace("LOCAL", "true"))
# Statements in autocommit take the session's isolation level.
_PIN_SESSION = text(
    _SETTINGS.replace("LOCAL", "false") + ", set_config('default_transaction_isolation', 'read committed', false)"
)

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


def pin_plans(conn: Connection, /) -> None:
    """Let the rest of the transaction use index probes only, with plans made once, and wait 1 s for a lock at most."""
    conn.execute(_PIN).close()


def pin_session(conn: Connection, /) -> None:
    """The same for all of the session, once committed: one that nobody else uses; and READ COMMITTED in autocommit."""
    conn.execute(_PIN_SESSION).close()


def wait_briefly(conn: Connection, /) -> None:
    """Let the rest of the transaction wait 50 ms for a lock at most: it is known that somebody holds one."""
    conn.execute(_BRIEFLY).close()


def end_session(conn: Connection, /, *, pid: int, port: int, age: float) -> bool:
    """End another session of the same role and database, by its process id, the port of its client (-1: a socket of the
    file system) and its age in seconds, give or take 5; whether it was there."""
    return bool(conn.execute(_END_SESSION, {"pid": pid, "port": port, "age": age}).all())
