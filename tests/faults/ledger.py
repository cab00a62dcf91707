"""What a chaos run writes down to be judged by, all of it in the database of the queue.

`moves` is written by triggers: each time a job came to be, was claimed, or left a status, with the session that did
it. `lingers` are the keys that stay held after a release, `freed` those of them that somebody freed early. The rest is
written by the handlers, through the functions here, and by the producers.
"""

from __future__ import annotations

import sqlalchemy as sa

from sqlane_sa import JobContext, Queue

MOVES = """
CREATE SEQUENCE move_number;
CREATE TABLE moves (
    n bigint NOT NULL DEFAULT nextval('move_number'), at timestamptz NOT NULL, begun_at timestamptz NOT NULL,
    xid xid, committed_at timestamptz, job_id text COLLATE "C" NOT NULL, event text NOT NULL, token text COLLATE "C",
    holder text, writer text, run_at timestamptz, lease_end timestamptz);
"""

TABLES = """
CREATE TABLE lingers (
    n bigint NOT NULL DEFAULT nextval('move_number'), mutex_key text COLLATE "C" NOT NULL,
    job_id text COLLATE "C" NOT NULL, token text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL DEFAULT statement_timestamp(), held_until timestamptz NOT NULL);
CREATE TABLE freed (
    n bigint NOT NULL DEFAULT nextval('move_number'), mutex_key text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL, writer text NOT NULL DEFAULT current_setting('application_name'));
CREATE TABLE notes (
    n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id text COLLATE "C" NOT NULL, token text COLLATE "C" NOT NULL, worker text NOT NULL, event text NOT NULL);
CREATE TABLE effects (job_id text COLLATE "C" NOT NULL, account text);
CREATE TABLE accounts (account text PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE children (parent_id text COLLATE "C" NOT NULL, child_id text COLLATE "C" NOT NULL);
CREATE TABLE reactions (failed_id text COLLATE "C" NOT NULL, job_id text COLLATE "C" NOT NULL);
CREATE TABLE produced (id text COLLATE "C" NOT NULL, outcome text NOT NULL);
CREATE TABLE windows (kind text NOT NULL, started_at timestamptz NOT NULL, ended_at timestamptz NOT NULL);
"""

# By rows, for the settings of a worker's transaction make a join of transition tables a nested loop.
NOTE_MOVES = """
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    event text;
BEGIN
    event := CASE
        WHEN TG_OP = 'INSERT' THEN 'insert'
        WHEN TG_OP = 'DELETE' THEN 'delete'
        WHEN OLD.status = 'running' AND NEW.status = 'running' AND OLD.lock_token = NEW.lock_token THEN 'renew'
        WHEN OLD.status = 'pending' AND NEW.status = 'running' THEN 'claim'
        WHEN OLD.status = 'running' AND NEW.status = 'completed' THEN 'complete'
        WHEN OLD.status = 'running' AND NEW.status = 'failed' AND NEW.stalls > OLD.stalls THEN 'stall for good'
        WHEN OLD.status = 'running' AND NEW.status = 'failed' THEN 'fail'
        WHEN OLD.status = 'running' AND NEW.status = 'pending' AND NEW.stalls > OLD.stalls THEN 'stall'
        WHEN OLD.status = 'running' AND NEW.status = 'pending' AND NEW.attempts > OLD.attempts THEN 'retry'
        WHEN OLD.status = 'running' AND NEW.status = 'pending' THEN 'release'
        ELSE 'illegal' END;
    IF event = 'insert' THEN
        INSERT INTO moves (at, begun_at, xid, job_id, event, writer, run_at)
        VALUES (statement_timestamp(), now(), xid(pg_current_xact_id()), NEW.id, event,
                current_setting('application_name'), NEW.run_at);
    ELSIF event = 'claim' THEN
        INSERT INTO moves (at, begun_at, xid, job_id, event, token, holder, writer, run_at, lease_end)
        VALUES (statement_timestamp(), now(), xid(pg_current_xact_id()), NEW.id, event, NEW.lock_token,
                NEW.locked_by, current_setting('application_name'), OLD.run_at, NEW.locked_until);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO moves (at, begun_at, xid, job_id, event, writer)
        VALUES (statement_timestamp(), now(), xid(pg_current_xact_id()), OLD.id, event,
                current_setting('application_name'));
    ELSE
        INSERT INTO moves (at, begun_at, xid, job_id, event, token, holder, writer, run_at, lease_end)
        VALUES (statement_timestamp(), now(), xid(pg_current_xact_id()), NEW.id, event, OLD.lock_token,
                OLD.locked_by, current_setting('application_name'), NEW.run_at, OLD.locked_until);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_new AFTER INSERT OR DELETE ON {jobs} FOR EACH ROW EXECUTE FUNCTION note_move();
-- A renewal is noted when it is not the holder's own.
CREATE TRIGGER note_change AFTER UPDATE ON {jobs} FOR EACH ROW
WHEN (OLD.status <> NEW.status OR OLD.lock_token IS DISTINCT FROM NEW.lock_token
      OR OLD.status IN ('completed', 'failed')
      OR (OLD.status = 'running' AND OLD.locked_by <> current_setting('application_name')))
EXECUTE FUNCTION note_move();
"""

TRIGGERS = """
CREATE FUNCTION note_linger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO freed (mutex_key, token) VALUES (OLD.mutex_key, OLD.lock_token);
    ELSE
        INSERT INTO lingers (mutex_key, job_id, token, held_until)
        VALUES (NEW.mutex_key, NEW.job_id, NEW.lock_token, NEW.held_until);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_linger AFTER UPDATE ON {mutexes} FOR EACH ROW
WHEN (NEW.held_until IS NOT NULL) EXECUTE FUNCTION note_linger();
CREATE TRIGGER note_freed AFTER DELETE ON {mutexes} FOR EACH ROW
WHEN (OLD.held_until > statement_timestamp()) EXECUTE FUNCTION note_linger();
"""

NOTE = sa.text("INSERT INTO notes (job_id, token, worker, event) VALUES (:job_id, :token, :worker, :event)")


def create(conn: sa.Connection, queue: Queue) -> None:
    """Make the ledger beside the tables of a queue that has no schema."""
    conn.exec_driver_sql(MOVES + TABLES)
    names = {"jobs": queue.tables.jobs.name, "mutexes": queue.tables.mutexes.name}
    conn.exec_driver_sql((NOTE_MOVES + TRIGGERS).format(**names))


class Ledger:
    """What handlers write in transactions of their own: `engine` is in autocommit, a note is one round trip."""

    def __init__(self, engine: sa.Engine, worker: str) -> None:
        self._engine = engine
        self._worker = worker

    def note(self, ctx: JobContext, event: str) -> None:
        """`event` is "start" or "end"."""
        values = {"job_id": ctx.id, "token": ctx.lock_token, "worker": self._worker, "event": event}
        with self._engine.connect() as conn:
            conn.execute(NOTE, values)
