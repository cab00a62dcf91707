"""The toolkit: plain functions `operation(conn, tables, *, ...)` over a caller-supplied SQLAlchemy `Connection`.

They begin nothing, commit nothing, retry nothing and keep no state; what they raise is SQLAlchemy's. All are correct
under READ COMMITTED, and all times are the database's.
"""

from sqlane_sa.store.backlog import Overdue, find_overdue
from sqlane_sa.store.candidates import find_candidates, find_keyed_candidates, find_keyed_places
from sqlane_sa.store.claim import DueJob, claim, claim_plain, pick_free
from sqlane_sa.store.claim_keyed import KeyedClaim, claim_heads, claim_keyed
from sqlane_sa.store.complete_keyed import complete_keyed
from sqlane_sa.store.completed import count_completed
from sqlane_sa.store.copying import copy_jobs
from sqlane_sa.store.failed import FailedCount, count_failed, failed_ids, find_failed, retry_failed
from sqlane_sa.store.failure import FailResult, fail
from sqlane_sa.store.finish import (
    ReleaseWrite,
    RetryWrite,
    complete,
    complete_unlocked,
    find_held,
    mark_timed_out,
    release,
    release_many,
    renew_leases,
    retry,
    retry_many,
)
from sqlane_sa.store.health import health
from sqlane_sa.store.insert import insert_jobs
from sqlane_sa.store.inspect import get, stats
from sqlane_sa.store.lines import FreeLines, find_free_lines
from sqlane_sa.store.locks import find_locked
from sqlane_sa.store.payloads import INLINE_BYTES, read_payload_texts, read_payloads
from sqlane_sa.store.presence import running_names, worker_seen
from sqlane_sa.store.probe import Lane, next_keyed, next_linger_end, probe, probe_lanes
from sqlane_sa.store.recall import recall
from sqlane_sa.store.recovery import Recovery, find_stale, recover_stale, recover_stale_many
from sqlane_sa.store.revision import read_revision
from sqlane_sa.store.rights import missing_rights
from sqlane_sa.store.sleepers import awake, fall_asleep, sweep_sleepers, wake
from sqlane_sa.store.sweep import (
    ExpiredJob,
    MutexSweep,
    WaitsSweep,
    delete_expired,
    first_expired,
    make_due,
    sweep_mutexes,
    sweep_waits,
)
from sqlane_sa.store.tuning import end_session, pin_plans, pin_session, wait_briefly
from sqlane_sa.store.turn import Turn, complete_and_claim, complete_free
from sqlane_sa.values.job import ClaimedJob, FailedEntry, JobLock

__all__ = [
    "INLINE_BYTES",
    "ClaimedJob",
    "DueJob",
    "ExpiredJob",
    "FailResult",
    "FailedCount",
    "FailedEntry",
    "FreeLines",
    "JobLock",
    "KeyedClaim",
    "Lane",
    "MutexSweep",
    "Overdue",
    "Recovery",
    "ReleaseWrite",
    "RetryWrite",
    "Turn",
    "WaitsSweep",
    "awake",
    "claim",
    "claim_heads",
    "claim_keyed",
    "claim_plain",
    "complete",
    "complete_and_claim",
    "complete_free",
    "complete_keyed",
    "complete_unlocked",
    "copy_jobs",
    "count_completed",
    "count_failed",
    "delete_expired",
    "end_session",
    "fail",
    "failed_ids",
    "fall_asleep",
    "find_candidates",
    "find_failed",
    "find_free_lines",
    "find_held",
    "find_keyed_candidates",
    "find_keyed_places",
    "find_locked",
    "find_overdue",
    "find_stale",
    "first_expired",
    "get",
    "health",
    "insert_jobs",
    "make_due",
    "mark_timed_out",
    "missing_rights",
    "next_keyed",
    "next_linger_end",
    "pick_free",
    "pin_plans",
    "pin_session",
    "probe",
    "probe_lanes",
    "read_payload_texts",
    "read_payloads",
    "read_revision",
    "recall",
    "recover_stale",
    "recover_stale_many",
    "release",
    "release_many",
    "renew_leases",
    "retry",
    "retry_failed",
    "retry_many",
    "running_names",
    "stats",
    "sweep_mutexes",
    "sweep_sleepers",
    "sweep_waits",
    "wait_briefly",
    "wake",
    "worker_seen",
]
