"""What the permutations start from, and the operations they are made of.

One job with two keys has run under the token "old"; in the scene "again" it was recovered and runs under "new", in
the scene "expired" its lease has ended and nobody has recovered it. The same has become of a job without keys, in a
lane of its own. Another waits for one of its keys, a third for a key whose linger has ended, and a fourth is finished
and has expired. Others are there to be left alone: not due yet, not expired yet, waiting for a key that lingers, for
one of two keys, or behind another in a line.
"""

from __future__ import annotations

import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.values.job import FailedJob, NewJob
from tests.model import operations as op
from tests.model.operations import TABLES, TICK, Operation
from tests.model.reference import Model, micro
from tests.model.rows import Lock, Soon, Time

JOB, NEXT, OTHER, ENDED = "job", "next", "other", "ended"
KEYLESS, LANE = "keyless", [("b", 0, 20)]
"""The job without keys, and the lane that it has for itself."""
SCENES = ("again", "expired", "again, kept for 0 s")
TABLE_NAMES = ("jobs", "payloads", "mutexes", "waits")


def new_job(id: str, *keys: str, name: str = "a", kept_ms: int = TICK * 1000, delay: float = 0) -> NewJob:
    return NewJob(
        id=id,
        name=name,
        payload="{}",
        priority=0,
        run_at=None,
        delay_ms=round(delay * 1000),
        mutex_keys=keys or None,
        max_attempts=3,
        max_stalls=2,
        failure_job="b",
        completed_retention_ms=kept_ms,
        failed_retention_ms=kept_ms,
    )


def reaction(failed: FailedJob) -> NewJob:
    return new_job("reaction", "k")


def start(id: str, token: str) -> Operation:
    """Claim one job; whether it started."""

    def run(conn: sa.Connection) -> bool:
        claimed = store.claim(
            conn, TABLES, candidate_ids=[id], lock_token=token, locked_by="w", lease=TICK, pick=op.take_every_row
        )
        return bool(claimed)

    return Operation(f"claim {id}", run, lambda model, _: bool(model.claim([id], token, "w", TICK, take_all=True)))


def recover(id: str) -> Operation:
    """What became of it."""
    whole = op.recover(id, TICK, 0, reaction)
    return Operation(whole.name, lambda conn: whole.run(conn)[1], lambda model, got: whole.predict(model, got)[1])


def fail(lock: Lock) -> Operation:
    """Whether it failed."""
    whole = op.fail(lock, {}, reaction)
    return Operation(whole.name, lambda conn: whole.run(conn)[0], lambda model, got: whole.predict(model, got)[0])


def end_lease(id: str) -> Operation:
    sql = f"UPDATE sqlane_jobs SET locked_until = locked_until - interval '{TICK} s' WHERE id = :id"

    def predict(model: Model, _: object) -> None:
        job = model.jobs.get(id)
        if job and job.locked_until is not None:
            job.locked_until = earlier(job.locked_until)

    return Operation("end its lease", lambda conn: execute(conn, sql, id=id), predict)


def end_lingers() -> Operation:
    sql = f"UPDATE sqlane_mutexes SET held_until = held_until - interval '{TICK} s' WHERE held_until IS NOT NULL"

    def predict(model: Model, _: object) -> None:
        for hold in model.mutexes.values():
            if hold.held_until is not None:
                hold.held_until = earlier(hold.held_until)

    return Operation("end the lingers", lambda conn: execute(conn, sql), predict)


def earlier(time: Time) -> Time:
    return Soon(time.after - micro(TICK)) if isinstance(time, Soon) else time - micro(TICK)


def execute(conn: sa.Connection, sql: str, **parameters: object) -> None:
    conn.execute(sa.text(sql), parameters)


def together(name: str, *parts: Operation) -> Operation:
    """Several operations in one transaction; the results of all."""
    return Operation(
        name,
        lambda conn: [part.run(conn) for part in parts],
        lambda model, _: [part.predict(model, None) for part in parts],
    )


def writes(token: str) -> dict[str, Operation]:
    lock = Lock(JOB, token)
    return {
        f"{token}: renew": op.renew([lock], 5 * TICK),
        f"{token}: mark": op.mark([lock]),
        f"{token}: complete": op.complete([lock]),
        f"{token}: complete keyed": op.complete_keyed([lock._replace(mutex_keys=("k", "l"))]),
        f"{token}: retry": op.retry(lock, 0, {}),
        f"{token}: fail": fail(lock),
        f"{token}: release": op.release(lock, 0, None),
        f"{token}: release, lingering": op.release(lock, None, TICK),
    }


OLD, NEW = writes("old"), writes("new")


def turn(locks: list[Lock], lanes: list[tuple[str, int, int]]) -> Operation:
    """What it completed and what it started, without what the jobs are like."""

    def run(conn: sa.Connection) -> tuple[list[str], list[str]]:
        result = op.run_turn(conn, locks, lanes, "turn", TICK)
        return op.completed_by(result, locks), [job.id for job in result.claimed]

    def predict(model: Model, _: object) -> tuple[list[str], list[str]]:
        completed, started = model.complete_and_claim(locks, lanes, {}, "turn", "wturn", TICK)
        return completed, [job.id for job in started]

    return Operation(f"complete {locks} and claim {lanes}", run, predict)


def writes_without_keys(token: str) -> dict[str, Operation]:
    lock = Lock(KEYLESS, token)
    return {
        f"without keys, {token}: turn": turn([lock], []),
        f"without keys, {token}: complete unlocked": op.complete_unlocked([lock]),
        f"without keys, {token}: complete free": op.complete_free([lock]),
        f"without keys, {token}: complete": op.complete([lock]),
        f"without keys, {token}: retry": op.retry(lock, 0, {}),
    }


TAKE_OVER = together("take over", end_lease(JOB), recover(JOB), end_lingers(), start(JOB, "newest"))
ROW = {
    "recover": together("recover", end_lease(JOB), recover(JOB)),
    "take over": TAKE_OVER,
    "recover, if it is stale": recover(JOB),
    "claim": start(JOB, "newest"),
    "claim next": start(NEXT, "next"),
    "delete by hand": op.delete_by_hand(JOB),
}
ASIDE = {
    "claim other": start(OTHER, "other"),
    "claim plain": start("plain", "p"),
    "claim the head of the line": op.claim_heads(["k"], ["a"], 20, "heads", 5 * TICK),
    "sweep": op.sweep_mutexes(100),
    "delete expired": op.delete_expired(100),
}
OLD_KEYLESS, NEW_KEYLESS = writes_without_keys("old"), writes_without_keys("new")
ROW_KEYLESS = {
    "without keys: take over": together("take over", end_lease(KEYLESS), recover(KEYLESS), start(KEYLESS, "newest")),
    "without keys: recover": together("recover", end_lease(KEYLESS), recover(KEYLESS)),
    "without keys: claim": start(KEYLESS, "newest"),
    "without keys: a turn claims": turn([], LANE),
    "without keys: a turn completes and claims": turn([Lock(KEYLESS, "new")], LANE),
}
OPERATIONS = OLD | NEW | ROW | ASIDE | OLD_KEYLESS | NEW_KEYLESS | ROW_KEYLESS
IDS = (JOB, NEXT, OTHER, ENDED, "pair", "plain", "later", "later keyed", "lingering", "done", "third, crossed")
# Where nobody else works, these show what the row operations do not.
ALONE = {
    "candidates": op.candidates({"a": 20}, None, 500),
    "candidates past a window": op.candidates({"a": 20}, None, 1),
    "claim everything free": op.claim(IDS, "all", TICK),
    "claim everything": op.claim(IDS, "all", TICK, take_all=True),
    "claim the pair": op.claim(["pair"], "all", TICK, take_all=True),
    "claim the next two": op.claim([NEXT, "lingering"], "all", TICK, take_all=True),
    "claim plain": op.claim_plain([("a", 0, 20)], "all", TICK),
    "turn": op.complete_and_claim(
        [Lock(KEYLESS, token) for token in ("old", "new")], [*LANE, ("a", 0, 20)], "all", TICK
    ),
    "turn after a place": op.complete_and_claim([], [("a", 0, 20)], "all", TICK, {("a", 0): (2**52, "")}),
    "claim keyed": op.claim_keyed(["a"], 20, "all", TICK),
    "claim the heads of lines": op.claim_heads(["e", "k", "q", "x", "y"], ["a"], 20, "all", TICK),
    "claim a head that is second elsewhere": op.claim_heads(["r"], ["a"], 20, "all", TICK),
    "find stale": op.find_stale(10),
    "insert again": op.insert([new_job(id) for id in (JOB, "plain", "another")]),
    "sweep waits": op.sweep_waits(),
    "make due": op.make_due(["a"]),
}
ENDS = {*OLD, *NEW, "recover", "take over"} - {
    f"{token}: {what}" for token in ("old", "new") for what in ("renew", "mark")
}


def prepare(conn: sa.Connection, scene: str) -> None:
    """Fill the tables, which are empty."""
    job = new_job(JOB, "k", "l", kept_ms=0 if "kept" in scene else TICK * 1000)
    keyless = new_job(KEYLESS, name="b", kept_ms=job.completed_retention_ms or 0)
    store.insert_jobs(conn, TABLES, jobs=[job, keyless, new_job(OTHER, "e"), new_job(ENDED)])
    ended = [*_claim(conn, ENDED, "x"), *_claim(conn, OTHER, "x")]
    store.complete(conn, TABLES, jobs=ended[:1])
    store.release(conn, TABLES, job=ended[1], linger=TICK)
    past = f"interval '{2 * TICK} s'"
    execute(conn, f"UPDATE sqlane_jobs SET expires_at = expires_at - {past}, finished_at = finished_at - {past}")
    ran = (JOB, KEYLESS)
    for id_ in ran:
        _claim(conn, id_, "old")
    store.insert_jobs(conn, TABLES, jobs=[new_job(NEXT, "k"), new_job("pair", "e", "k"), new_job("plain")])
    later = [new_job("later", delay=TICK), new_job("later keyed", "y", delay=TICK)]
    line = [new_job("first in line", "q"), new_job("second in line", "q"), new_job("third, crossed", "q", "r")]
    store.insert_jobs(conn, TABLES, jobs=[*later, *line, new_job("lingering", "x"), new_job("done")])
    for id_ in ran:
        end_lease(id_).run(conn)
        if scene != "expired":
            store.recover_stale(conn, TABLES, id=id_, lease=TICK, stall_delay=0)
    end_lingers().run(conn)
    for id_ in ran if scene != "expired" else ():
        _claim(conn, id_, "new")
    store.complete(conn, TABLES, jobs=_claim(conn, "done", "x"))
    store.release(conn, TABLES, job=_claim(conn, "lingering", "x")[0], linger=TICK)


def _claim(conn: sa.Connection, id: str, token: str) -> list[Lock]:
    claimed = store.claim(conn, TABLES, candidate_ids=[id], lock_token=token, locked_by="w", lease=TICK)
    assert claimed, f"{id} did not start"
    return [Lock(job.id, job.lock_token) for job in claimed]
