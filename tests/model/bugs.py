"""Faults to put into the store on purpose: what the checks must see.

`seeded(name)` changes the texts of statements of this process; the few that need the tables changed too do that by
`alter`. A worker process of the tests calls `seed_from_environment()` first: the name stands in SQLANE_TEST_BUG.
The product knows nothing of it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from sqlane_sa.statement import Statement

VARIABLE = "SQLANE_TEST_BUG"

SEQUENCES = "sequences"
OPERATIONS = "operations"
PERMUTATIONS = "permutations"
LOCKED_ROWS = "locked rows"
WAITS = "times after a wait"
HAND = "ended by hand"


@dataclass(frozen=True)
class Edit:
    """In the statement, `old` is replaced wherever it stands; it must stand there `times` times."""

    statement: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class Bug:
    """`caught_by` is the check that must fail."""

    caught_by: str
    edits: tuple[Edit, ...] = ()
    ddl: tuple[str, ...] = field(default=())


TOKEN = " AND j.lock_token = i.lock_token"
RUNNING = " AND coalesce(j.status, '') = 'running'"
ROW_LOCK = "FOR NO KEY UPDATE SKIP LOCKED"
TURN = "turn.COMPLETE_AND_CLAIM"
FREE = " AND j.xmax IN (CAST('0' AS xid), j.xmin)"
TURN_CLAIMS = "LIMIT l.max_rows FOR NO KEY UPDATE SKIP LOCKED"
DUE = " AND run_at <= statement_timestamp()"
KEYED_CLAIMS = ("claim_keyed.CLAIM_IN_WINDOW", "claim_keyed.CLAIM_HEADS")
KEYED_COMPLETION = "complete_keyed.COMPLETE_KEYED"
BUSY = "m.held_until > statement_timestamp()) LIMIT "
AHEAD = "(w.run_at, w.job_id) < (c.run_at, c.id) LIMIT "
LANE_DUE = "AND j.run_at <= statement_timestamp()"


def without(text: str, *statements: str, by: str, times: int = 1, instead: str = "") -> Bug:
    return Bug(by, tuple(Edit(statement, text, instead, times) for statement in statements))


def waiting(*statements: str) -> Bug:
    return without(" SKIP LOCKED", *statements, by=LOCKED_ROWS)


BUGS: Mapping[str, Bug] = {
    # The fence
    "complete without the token": without(TOKEN, "finish.COMPLETE", by=OPERATIONS),
    "complete keyed without the token": without(TOKEN, KEYED_COMPLETION, by=OPERATIONS),
    "renew without the token": without(TOKEN, "finish.RENEW", by=OPERATIONS),
    "mark timed out without the token": without(TOKEN, "finish.MARK_TIMED_OUT", by=OPERATIONS),
    "retry, release and fail without the token": Bug(
        OPERATIONS,
        (
            Edit("locks.LOCK_RUNNING", TOKEN, ""),
            Edit("locks.LOCK_RUNNING", "\nSELECT j.id, j.lock_token,", "\nSELECT j.id, i.lock_token,"),
        ),
    ),
    "keys freed without the token": Bug(
        OPERATIONS,
        (
            Edit("locks.LOCK_HOLDS", " AND h.lock_token = i.lock_token", ""),
            Edit("locks.FREE", " AND h.lock_token = i.lock_token", "", times=2),
        ),
    ),
    "complete without the status": without(RUNNING, "finish.COMPLETE", by=HAND),
    "renew without the status": without(RUNNING, "finish.RENEW", by=HAND),
    "mark timed out without the status": without(RUNNING, "finish.MARK_TIMED_OUT", by=HAND),
    "retry, release and fail without the status": without(RUNNING, "locks.LOCK_RUNNING", by=HAND),
    "claim of what is not pending": without(" AND coalesce(status, '') = 'pending'", "claim.LOCK_DUE", by=OPERATIONS),
    "recovery before the lease has ended": without(
        " AND locked_until < statement_timestamp()", "recovery.LOCK_STALE", by=OPERATIONS
    ),
    "turn without the token": without(TOKEN, TURN, by=OPERATIONS, times=3),
    "complete free without the token": without(TOKEN, "turn.COMPLETE_FREE", by=OPERATIONS, times=3),
    "turn without the status": without(RUNNING, TURN, by=HAND),
    "recall without the status": without("status = 'running' AND ", "recall.RECALL", by=HAND),
    "turn claims what is not pending": without("j.status = 'pending' AND ", TURN, by=OPERATIONS),
    "turn claims jobs with keys": without(" AND j.mutex_keys IS NULL", TURN, by=OPERATIONS),
    "turn does not say what it skipped": without("< cardinality(", TURN, by=OPERATIONS, instead="> cardinality("),
    # Row locks. Without one, an update by place (ctid) waits for the other session and then finds nothing there; the
    # deletion of a job that is kept for 0 s goes by id, and takes what runs under another token by then.
    "complete without the row lock": without(ROW_LOCK, "finish.COMPLETE", by=PERMUTATIONS),
    "turn claims without the row lock": without(TURN_CLAIMS, TURN, by=LOCKED_ROWS, instead="LIMIT l.max_rows"),
    "renew without the row lock": without(ROW_LOCK, "finish.RENEW", by=PERMUTATIONS),
    "mark timed out without the row lock": without(ROW_LOCK, "finish.MARK_TIMED_OUT", by=PERMUTATIONS),
    "retry, release and fail without the row lock": without("FOR NO KEY UPDATE", "locks.LOCK_RUNNING", by=PERMUTATIONS),
    "claim without the row lock": without(ROW_LOCK, "claim.LOCK_DUE", by=PERMUTATIONS),
    "recovery without the row lock": without(ROW_LOCK, "recovery.LOCK_STALE", by=PERMUTATIONS),
    "sweep without the row lock": without("FOR UPDATE SKIP LOCKED", "sweep.SWEEP_LINGERS", by=PERMUTATIONS),
    # Keys
    "key index not unique": Bug(
        PERMUTATIONS,
        (
            Edit("claim.ACQUIRE", "\nON CONFLICT (mutex_key) DO UPDATE\n", "\n"),
            Edit("claim.ACQUIRE", "SET job_id = excluded.job_id, lock_token = excluded.lock_token, ", ""),
            Edit("claim.ACQUIRE", "held_until = NULL, created_at = excluded.created_at\n", ""),
            Edit("claim.ACQUIRE", "WHERE m.held_until <= :now\n", ""),
            Edit("claim.ACQUIRE", " ORDER BY i.mutex_key", " WHERE :now IS NOT NULL ORDER BY i.mutex_key"),
        ),
        ("ALTER TABLE sqlane_mutexes DROP CONSTRAINT sqlane_mutexes_pkey",),
    ),
    "key index dropped": Bug(OPERATIONS, ddl=("ALTER TABLE sqlane_mutexes DROP CONSTRAINT sqlane_mutexes_pkey",)),
    "id index not unique": Bug(
        OPERATIONS,
        (Edit("insert.INSERT_KNOWN", "ON CONFLICT (id) DO NOTHING", ""),),
        ("ALTER TABLE sqlane_jobs DROP CONSTRAINT sqlane_jobs_pkey",),
    ),
    "retentions swapped by COPY": Bug(
        SEQUENCES,
        (
            Edit("copying.COPY_JOBS", "failed_retention_ms, mutex_keys", "completed_retention_ms, mutex_keys"),
            Edit("copying.COPY_JOBS", "failure_job, completed_retention_ms,", "failure_job, failed_retention_ms,"),
        ),
    ),
    "held keys taken": without(
        "m.held_until <= :now", "claim.ACQUIRE", by=OPERATIONS, instead="m.held_until <= :now OR true"
    ),
    "part of a set of keys kept": without(
        "lock_token = :lock_token", "claim.PUT_BACK", by=OPERATIONS, instead="lock_token = :lock_token AND false"
    ),
    "linger dropped": without(
        "interval '1 millisecond'", "locks.LINGER", by=OPERATIONS, instead="interval '0 milliseconds'"
    ),
    "lingers swept before they end": without(
        "held_until <= statement_timestamp()", "sweep.SWEEP_LINGERS", by=OPERATIONS, instead="held_until IS NOT NULL"
    ),
    "sweep of the keys of running jobs": without(
        RUNNING + " AND j.lock_token = m.lock_token",
        "sweep.SWEEP_ORPHANS",
        by=OPERATIONS,
        instead=" AND false",
    ),
    "sweep without the token": without(" AND j.lock_token = m.lock_token", "sweep.SWEEP_ORPHANS", by=HAND),
    "sweep without the status": without(RUNNING, "sweep.SWEEP_ORPHANS", by=HAND),
    "order of a key dropped": without(
        AHEAD + "1", "candidates.WINDOWED", "candidates.WALKED", by=OPERATIONS, instead=AHEAD + "0"
    ),
    "order of a key dropped in the walk": without(AHEAD + "1", "candidates.WALKED", by=OPERATIONS, instead=AHEAD + "0"),
    "lines not left": without(
        "w.job_id = j.id", "claim.LEAVE_LINES", by=OPERATIONS, instead="w.job_id = j.id AND false"
    ),
    "no way back into the lines": without(
        "k.mutex_key IS NOT NULL", "finish.RETRY", "finish.RELEASE", "finish.STALL", by=OPERATIONS, instead="false"
    ),
    "order of a key dropped in the keyed claim": without(
        AHEAD + "1", *KEYED_CLAIMS, by=OPERATIONS, instead=AHEAD + "0"
    ),
    "lines not left by the keyed claim": without(
        "w.job_id = c.id", *KEYED_CLAIMS, by=OPERATIONS, instead="w.job_id = c.id AND false"
    ),
    "keyed claim of what is held": Bug(
        OPERATIONS,
        tuple(
            edit
            for claim in KEYED_CLAIMS
            for edit in (
                Edit(claim, BUSY + "1", BUSY + "0"),
                Edit(claim, "m.held_until <= excluded.created_at", "true"),
            )
        ),
    ),
    # Time
    "keyed claim before it is due": without(LANE_DUE, "claim_keyed.CLAIM_IN_WINDOW", by=OPERATIONS, times=3),
    "claim before it is due": without(DUE, "claim.LOCK_DUE", by=OPERATIONS),
    "plain claim before it is due": without(LANE_DUE, "claim.CLAIM_PLAIN", by=OPERATIONS),
    "turn claims before it is due": without(LANE_DUE, TURN, by=OPERATIONS),
    "turn claims from the start of the lane": without(
        "AND (j.run_at, j.id) > (l.after_time, l.after_id)", TURN, by=OPERATIONS
    ),
    "candidates before they are due": Bug(
        OPERATIONS,
        (Edit("candidates.PLAIN", LANE_DUE, ""), Edit("candidates.WINDOWED", LANE_DUE, "", times=2)),
    ),
    "expiry of what does not expire yet": without(
        "expires_at <= statement_timestamp()", "sweep.DELETE_EXPIRED", by=OPERATIONS, instead="expires_at IS NOT NULL"
    ),
    "payload of a completed job kept": without(
        "DELETE FROM {payloads} WHERE",
        "finish.COMPLETE",
        by=OPERATIONS,
        instead="DELETE FROM {payloads} WHERE false AND",
    ),
    "payload of a job completed by a turn kept": without(
        "DELETE FROM {payloads} WHERE", TURN, by=OPERATIONS, instead="DELETE FROM {payloads} WHERE false AND"
    ),
    "complete takes its times before the wait": without(" SKIP LOCKED", "finish.COMPLETE", by=WAITS),
    # One locked row must not hold up the others
    "claim waits": waiting("claim.LOCK_DUE"),
    "plain claim waits": waiting("claim.CLAIM_PLAIN"),
    "complete waits": waiting("finish.COMPLETE"),
    "turn waits to complete": without(FREE, TURN, by=LOCKED_ROWS),
    "turn waits to claim": without(TURN_CLAIMS, TURN, by=LOCKED_ROWS, instead="LIMIT l.max_rows FOR NO KEY UPDATE"),
    "renewal waits": waiting("finish.RENEW"),
    "mark waits": waiting("finish.MARK_TIMED_OUT"),
    "recovery waits": waiting("recovery.LOCK_STALE"),
    "sweep waits for lingers": waiting("sweep.SWEEP_LINGERS"),
    "sweep waits for holds": waiting("sweep.SWEEP_ORPHANS"),
    "expiry waits": waiting("sweep.DELETE_EXPIRED"),
}

# Those of the bugs above that the first few of CI's sequences catch too; with more sequences they catch all of theirs:
# python -m tests.model --sequences 1000 --bug NAME
IN_SEQUENCES = ("claim of what is not pending", "linger dropped", "lines not left")


@contextmanager
def seeded(name: str) -> Iterator[None]:
    """Within the block, this process runs the store with the bug. Raises LookupError when a text is not there."""
    with edited(name, BUGS[name].edits):
        yield


@contextmanager
def edited(name: str, edits: Iterable[Edit]) -> Iterator[None]:
    """`seeded` for edits that are none of `BUGS`."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.statement) or statement(edit.statement).sql
        if text.count(edit.old) != edit.times:
            message = f"{name}: {edit.old!r} stands {text.count(edit.old)} times in {edit.statement}, not {edit.times}"
            raise LookupError(message)
        texts[edit.statement] = text.replace(edit.old, edit.new)
    with ExitStack() as stack:
        for place, sql in texts.items():
            stack.enter_context(swapped(statement(place), sql))
        yield


def seed_from_environment() -> ExitStack:
    """Seed what SQLANE_TEST_BUG names, until the stack is closed, or else as long as the process lives."""
    stack = ExitStack()
    name = os.environ.get(VARIABLE)
    if name:
        stack.enter_context(seeded(name))
    _seeds.append(stack)
    return stack


_seeds: list[ExitStack] = []
"""Kept: a generator that nobody refers to is closed, and its bug mended."""


def alter(name: str, conn: sa.Connection) -> None:
    """Change the tables as the bug needs it; there is no way back but another database."""
    for sql in BUGS[name].ddl:
        conn.exec_driver_sql(sql)


def statement(place: str) -> Statement:
    module, name = place.split(".")
    found: Any = getattr(importlib.import_module(f"sqlane_sa.store.{module}"), name)
    assert isinstance(found, Statement), place
    return found


@contextmanager
def swapped(right: Statement, sql: str) -> Iterator[None]:
    """Another statement in its place, in every module that has it: it is rendered anew for each queue."""
    wrong = Statement(sql, right.binds, right.columns)
    places = [
        (module, name)
        for key, module in list(sys.modules.items())
        if key.startswith("sqlane_sa.store.")
        for name, value in list(vars(module).items())
        if value is right
    ]
    for module, name in places:
        setattr(module, name, wrong)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, right)
