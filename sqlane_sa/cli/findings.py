"""What the health of a queue means: for each figure a verdict, and where it is bad, why and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlane_sa.cli.ages import age
from sqlane_sa.schema import Tables
from sqlane_sa.statement import qualified, table_name
from sqlane_sa.store import FailedCount, Overdue
from sqlane_sa.values.health import Health, Snapshot, TableHealth

LONG_MS = 5 * 60_000
LONG_TRANSACTIONS = 1_000
MANY_TRANSACTIONS = 1_000_000
UNTIMED_TRANSACTIONS = 100_000
MANY_DEAD, FAR_TOO_MANY_DEAD = 10_000, 1_000_000
DEAD_SHARE = 0.2
LATE_VACUUM_MS = 10 * 60_000
NOTIFY_QUEUE = 0.1
LONG_DUE_MS = 5_000
"""Several polls of a worker with nothing to do."""
LONG_EXPIRED_MS = 60 * 60_000
"""Many sweeps, with the default interval or a longer one."""
COUNTED = 10_000
"""As many expired jobs are looked at."""
MANY_FAILED = 100
FAILED_WITHIN = 60 * 60.0
"""Seconds."""
FAILED_COUNTED = 1_000
"""As many failed jobs of each name are looked at."""
NAMES_SHOWN = 5

LEFT_OVER = ("_ccnew", "_ccold")
"""What a REINDEX CONCURRENTLY that did not finish leaves beside the index."""


class Finding(NamedTuple):
    """One line of the doctor's: `why` and `step` are there when it is not `ok`."""

    topic: str
    ok: bool
    said: str
    why: str = ""
    step: str = ""


def findings(health: Health, tables: Tables) -> Iterator[Finding]:
    yield _snapshot(health.snapshot)
    yield _autovacuum(health.autovacuum)
    if health.tables:  # of none there is nothing to be said
        yield from _dead_rows(health, tables)
        yield from _indexes(health.invalid_indexes, tables)
    yield _notifications(health.notify_queue)


def workers(delays: Sequence[int], seen: bool) -> Finding:
    """`delays` in ms until the next job of each name is due, negative when it is overdue; `seen` whether the tables
    show a worker at work."""
    late = [-delay for delay in delays if delay <= -LONG_DUE_MS]
    if seen or not late:
        return Finding("workers", True, "one is at work" if seen else "none is seen, and no job waits for one")
    names = "jobs of one name are" if len(late) == 1 else f"jobs of {len(late)} names are"
    return Finding(
        "workers",
        False,
        f"{names} due, the oldest for {age(max(late))}, and no worker is seen",
        "none holds a job, and none waits for a wake-up",
        "start one: sqlane worker MODULE:QUEUE",
    )


def unserved(delays: Mapping[str, int], running: Collection[str]) -> Iterator[Finding]:
    """Of names: `delays` as for `workers`; a job of a name that is `running` says that a worker serves it."""
    late = {name: -delay for name, delay in delays.items() if delay <= -LONG_MS and name not in running}
    worst = sorted(late, key=lambda name: late[name], reverse=True)
    for name in worst[:NAMES_SHOWN]:
        others = f"; and of {len(late) - NAMES_SHOWN} other names" * (name == worst[0] and len(late) > NAMES_SHOWN)
        yield Finding(
            "names",
            False,
            f"jobs of {name} are due, the oldest for {age(late[name])}, and none of them runs{others}",
            "the workers do not serve that name, or do not define it, or its mutex keys are held",
            f"serve it: sqlane worker MODULE:QUEUE --names {shlex.quote(name)}",
        )
    if not late:
        yield Finding("names", True, "none has jobs that wait while none of it runs")


def failures(counts: Sequence[FailedCount]) -> Iterator[Finding]:
    """`counts` within the last hour, each up to `FAILED_COUNTED`."""
    many = sorted((one for one in counts if one.jobs >= MANY_FAILED), key=lambda one: one.jobs, reverse=True)
    for one in many[:NAMES_SHOWN]:
        least = "at least " * (one.jobs >= FAILED_COUNTED)
        yield Finding(
            "failures",
            False,
            f"{least}{one.jobs:,} jobs of {one.name} failed for good in the last hour",
            "each has used up its attempts or its stalls, or was discarded",
            f"look at their errors: sqlane failed --names {shlex.quote(one.name)}",
        )
    if not many:
        total = sum(one.jobs for one in counts)
        yield Finding(
            "failures", True, f"{total or 'no'} {'job' if total == 1 else 'jobs'} failed for good in the last hour"
        )


def expired(overdue: Overdue) -> Finding:
    """Ended jobs that should be deleted, counted up to `COUNTED`."""
    if overdue.oldest_ms < LONG_EXPIRED_MS:
        return Finding("expired jobs", True, "none is left for long")
    many = f"{'at least ' * (overdue.jobs >= COUNTED)}{overdue.jobs:,} {'is' if overdue.jobs == 1 else 'are'}"
    return Finding(
        "expired jobs",
        False,
        f"{many} past the time to be kept, the oldest for {age(overdue.oldest_ms)}",
        "no worker sweeps, or its sweeps fail again and again: the tables grow",
        "look for `sweeper` in the log of the workers; or start one: sqlane worker MODULE:QUEUE",
    )


def _snapshot(held: Snapshot | None) -> Finding:
    if held is None:
        return Finding("snapshots", True, "nobody holds one")
    if not _is_long(held):
        since = f"{held.transactions:,} transactions" if held.age_ms is None else age(held.age_ms)
        return Finding("snapshots", True, f"the oldest is {since} old, {_holder(held)}")
    since = "" if held.age_ms is None else f" for {age(held.age_ms)}"
    return Finding(
        "snapshots",
        False,
        f"one is held{since}, over {held.transactions:,} transactions, {_holder(held)}",
        "no row that died since then can be removed: the tables grow, and claims get slower",
        _release(held),
    )


def _is_long(held: Snapshot) -> bool:
    """A time alone says little: where nothing was written since, nothing is held back."""
    if held.transactions >= MANY_TRANSACTIONS:
        return True
    if held.age_ms is None:
        return held.transactions >= UNTIMED_TRANSACTIONS
    return held.age_ms >= LONG_MS and held.transactions >= LONG_TRANSACTIONS


def _holder(held: Snapshot) -> str:
    who = f"{held.kind} {held.name}" if held.name else held.kind
    facts = [
        f"pid {held.pid}" if held.pid else "",
        f"user {held.user}" if held.user else "",
        held.application_name or "",
        held.state or "",
    ]
    known = ", ".join(fact for fact in facts if fact)
    return f"by the {who}" + (f" ({known})" if known else "")


def _release(held: Snapshot) -> str:
    if held.kind == "prepared transaction":
        gid = "'" + (held.name or "").replace("'", "''") + "'"
        return f"COMMIT PREPARED {gid}; or ROLLBACK PREPARED {gid};"
    if held.kind == "session":
        return f"let it end, or end it: SELECT pg_terminate_backend({held.pid});"
    if held.kind == "replication slot" and held.pid is None:
        return f"start its standby, or give it up: SELECT pg_drop_replication_slot('{held.name}');"
    return "end the long query on that standby, or set hot_standby_feedback = off there"


def _autovacuum(on: bool) -> Finding:
    if on:
        return Finding("autovacuum", True, "on")
    return Finding(
        "autovacuum",
        False,
        "switched off",
        "nothing removes dead rows by itself",
        "set autovacuum = on and track_counts = on in postgresql.conf, and reload it",
    )


def _dead_rows(health: Health, tables: Tables) -> Iterator[Finding]:
    names = {table.name: table_name(table) for table in tables.metadata.tables.values()}
    bad = [table for table in health.tables if _has_many_dead(table)]
    for table in bad:
        last = "never vacuumed" if table.vacuum_age_ms is None else f"last vacuumed {age(table.vacuum_age_ms)} ago"
        yield Finding(
            "dead rows",
            False,
            f"{table.name} has {table.dead_rows:,} beside {table.live_rows:,} live ones, {last}",
            "each look for due jobs walks over them",
            f"VACUUM (ANALYZE) {names[table.name]}; where that changes nothing, a snapshot holds them",
        )
    if not bad:
        dead, live = sum(table.dead_rows for table in health.tables), sum(table.live_rows for table in health.tables)
        yield Finding("dead rows", True, f"{dead:,} beside {live:,} live ones")


def _has_many_dead(table: TableHealth) -> bool:
    if table.dead_rows > max(FAR_TOO_MANY_DEAD, table.live_rows):
        return True
    # Never vacuumed, it may be new: the first automatic one comes within minutes.
    many = MANY_DEAD if table.vacuum_age_ms is not None else 10 * MANY_DEAD
    is_late = table.vacuum_age_ms is None or table.vacuum_age_ms > LATE_VACUUM_MS
    return is_late and table.dead_rows > max(many, DEAD_SHARE * table.live_rows)


def _indexes(invalid: tuple[str, ...], tables: Tables) -> Iterator[Finding]:
    for name in invalid:
        verb = "DROP" if name.rstrip("0123456789").endswith(LEFT_OVER) else "REINDEX"
        yield Finding(
            "indexes",
            False,
            f"{name} is invalid",
            "a CREATE or REINDEX CONCURRENTLY did not finish: no query uses it, and each write keeps it up",
            f"{verb} INDEX CONCURRENTLY {qualified(name, tables)};",
        )
    if not invalid:
        yield Finding("indexes", True, "all valid")


def _notifications(usage: float) -> Finding:
    said = f"the server's queue of them is {usage:.0%} full"
    if usage < NOTIFY_QUEUE:
        return Finding("notifications", True, said)
    return Finding(
        "notifications",
        False,
        said,
        "a session that LISTENs stays in one transaction; with the queue full, commits that notify fail",
        "find and end it: SELECT pid, query FROM pg_stat_activity WHERE state LIKE 'idle in%' ORDER BY xact_start;",
    )
