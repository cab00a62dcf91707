"""Claims: starts jobs in the database, in batches; and around the rows that cannot be claimed, if there are any."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypedDict

from sqlalchemy import Connection

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.outcomes import is_contended, is_hopeless, may_be_one_rows, may_pass
from sqlane_sa.worker.running import RunningJob
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

LOCKED_PAUSES = (0.5, 4.0)
ODD_PAUSES = (30.0, 300.0)
"""The first and the longest: seconds until a job that could not be claimed is tried again."""
MAX_ASIDE = 100
"""So many rows that cannot be claimed: the fault is not theirs, and is treated like an outage."""
MAX_REFUSED = 5
"""So many that are refused like in an outage, and none that is claimed: it is taken for one."""
SHARE_OF_LEASE, MAX_SEARCH = 0.1, 1.0
"""How long a search for odd rows may take, of the lease and in seconds, once it has claimed something: that has to
start, and nobody renews it before."""
FORGET_AFTER = 30.0
"""Seconds from when a job was to be tried again, in which no look has found it."""


class Aside(NamedTuple):
    """A job that could not be claimed, and when it is tried again. `said` is whether the fault is known to be its own:
    before that it may be an outage."""

    at: float
    pause: float
    keyed: bool
    since: float
    said: bool


class Terms(TypedDict):
    lock_token: str
    locked_by: str
    lease: float


class Claims:
    """A row is odd when a trigger refuses its claim, or nobody can read it; or somebody else's transaction holds its
    key and stands still. It is left alone for a while, and said so once; the others are claimed by halves around it."""

    def __init__(self, database: Database, queue: Queue, *, worker_id: str, lease: float) -> None:
        self._database = database
        self._queue = queue
        self._worker_id = worker_id
        self._lease = lease
        self._aside: dict[str, Aside] = {}
        self._suspicious = False
        self._worked_at = 0.0
        self.since = 0.0
        """When the first claim of the last search began that got something: leases count from then."""
        self._open: list[str] = []
        self._in_doubt: list[str] = []

    @property
    def in_doubt(self) -> bool:
        """Whether there were claims whose commit was never acknowledged: what they started may wait for its handler."""
        return bool(self._in_doubt)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Around a transaction that claims: one that fails, but not for certain, leaves its lock tokens in doubt; and
        one that gave way to another session may have done so for one of its rows."""
        try:
            yield
        except Exception as error:
            if may_pass(error):
                self._suspicious = self._suspicious or bool(self._open)
            if not (is_hopeless(error) or is_contended(error)):
                self._in_doubt += self._open
            raise
        finally:
            self._open.clear()

    def recall(self) -> list[ClaimedJob]:
        """The jobs that were started by the claims in doubt, with a new lease: nobody else would run them before
        theirs ends, and then it would count as a stall."""
        with self._database.transaction() as conn:
            jobs = store.recall(conn, self._queue.tables, lock_tokens=self._in_doubt, lease=self._lease)
        self._in_doubt.clear()
        if jobs:
            log.warning("%d jobs were claimed by a commit whose answer was lost; they start now", len(jobs))
        return jobs

    def terms(self) -> Terms:
        """With which the next claim, in a transaction that is `followed`, takes its jobs."""
        self._open.append(new_id())
        return {"lock_token": self._open[-1], "locked_by": self._worker_id, "lease": self._lease}

    @property
    def apart(self) -> bool:
        """Whether there are rows to claim around."""
        return self._suspicious or bool(self._aside)

    def suspect(self) -> None:
        """A batch failed for one of its rows: claim apart, to find it."""
        self._suspicious = True

    def plain(self, conn: Connection, shares: Sequence[tuple[str, int, int]]) -> list[ClaimedJob]:
        """The first jobs without keys of each lane `(name, priority, limit)`, in the caller's transaction."""
        return store.claim_plain(
            conn,
            self._queue.tables,
            lanes=shares,
            **self.terms(),
        )

    def turn(
        self,
        conn: Connection,
        completed: Sequence[RunningJob],
        shares: Sequence[tuple[str, int, int]],
        after: Mapping[tuple[str, int], tuple[datetime, str]],
    ) -> store.Turn:
        """`plain` from the marks `after` on, and the completion of jobs without keys, in one statement."""
        return store.complete_and_claim(
            conn,
            self._queue.tables,
            jobs=completed,
            lanes=shares,
            after=after,
            **self.terms(),
        )

    def plain_apart(self, shares: Sequence[tuple[str, int, int]]) -> list[ClaimedJob]:
        """The same around odd rows, in transactions of its own."""
        limits: dict[str, int] = {}
        for name, _, limit in shares:
            limits[name] = limits.get(name, len(self._aside)) + limit
        with self._database.transaction() as conn:
            ids = store.find_candidates(conn, self._queue.tables, limits_by_name=limits, keyed_names=())
        return self._around(ids, sum(limit for *_, limit in shares), {}, keyed=False)

    def keyed_apart(self, names: Collection[str], want: int, after_key: str) -> tuple[list[ClaimedJob], int | None]:
        """Jobs with keys around odd rows, in transactions of its own; and the milliseconds until more may start."""
        tables = self._queue.tables
        limits = dict.fromkeys(sorted(names), want + len(self._aside))
        with self._database.transaction() as conn:
            places = store.find_keyed_places(conn, tables, limits_by_name=limits, after_key=after_key)
            next_ms = store.next_keyed(conn, tables, names=names)
        claimed = self._around(list(places), want, places, keyed=True)
        return claimed, min((ms for ms in (next_ms, self._next_keyed_try()) if ms is not None), default=None)

    def _claim(self, conn: Connection, ids: Sequence[str], places: Mapping[str, float]) -> list[ClaimedJob]:
        tables = self._queue.tables
        claimed = store.claim(
            conn,
            tables,
            candidate_ids=ids,
            **self.terms(),
            pick=partial(_pick_in_place, places),
        )
        texts = store.read_payload_texts(conn, tables, [job.id for job in claimed], max_bytes=store.INLINE_BYTES)
        return [job._replace(payload_text=texts.get(job.id)) for job in claimed]

    def _around(self, found: Sequence[str], want: int, places: Mapping[str, float], *, keyed: bool) -> list[ClaimedJob]:
        began = time.monotonic()
        self._forget(found, began, keyed=keyed)
        again = [id_ for id_ in found if id_ in self._aside and self._aside[id_].at <= began][: max(1, want // 2)]
        # From the end: those that are tried again come first, each by itself, and take no more than half.
        parts = [[id_ for id_ in found if id_ not in self._aside][:want], *([id_] for id_ in reversed(again))]
        claimed: list[ClaimedJob] = []
        refused: dict[str, Exception] = {}
        try:
            while parts and not self._is_enough(claimed, want, began) and self._new_of(refused) < MAX_REFUSED:
                part = parts.pop()[: want - len(claimed)]
                error = self._claim_part(part, places, claimed)
                if error and len(part) > 1:
                    parts += [part[len(part) // 2 :], part[: len(part) // 2]]
                elif error:
                    refused[part[0]] = error
            self._judge(refused, bool(claimed), keyed=keyed)
        except Exception:
            if not claimed:
                raise
            return claimed  # they run; the next turn meets the outage
        self._suspicious = False
        return claimed

    def _is_enough(self, claimed: Sequence[ClaimedJob], want: int, began: float) -> bool:
        return len(claimed) >= want or (
            bool(claimed) and time.monotonic() - began > min(SHARE_OF_LEASE * self._lease, MAX_SEARCH)
        )

    def _new_of(self, refused: Mapping[str, Exception]) -> int:
        return sum(id_ not in self._aside for id_, error in refused.items() if _is_like_an_outage(error))

    def _judge(self, refused: Mapping[str, Exception], works: bool, *, keyed: bool) -> None:
        """Set them aside. Raises where it may as well be an outage: nothing was claimed since their first refusal."""
        outage: Exception | None = None
        if works:
            self._worked_at = time.monotonic()
        for id_, error in refused.items():
            before = self._aside.get(id_)
            its_own = works or not _is_like_an_outage(error) or self._is_known(before)
            self._set_aside(id_, error, before, keyed=keyed, said=its_own)
            outage = outage or (None if its_own else error)
        if outage:
            raise outage

    def _is_known(self, aside: Aside | None) -> bool:
        """Whether others were claimed since this one was refused first."""
        return aside is not None and (aside.said or aside.since < self._worked_at)

    def _forget(self, found: Collection[str], now: float, *, keyed: bool) -> None:
        """What another worker has claimed, or somebody changed. A look for keys sees whatever can start; one for jobs
        without keys only some names, and neither those of the other."""
        for id_, aside in list(self._aside.items()):
            looked_for = aside.at <= now and aside.keyed and keyed
            if id_ not in found and (looked_for or aside.at + FORGET_AFTER <= now):
                del self._aside[id_]

    def _next_keyed_try(self) -> int | None:
        """Milliseconds until a job with keys that was set aside is tried again."""
        now = time.monotonic()
        tries = (aside.at for aside in self._aside.values() if aside.keyed)
        return min((max(0, int((at - now) * 1000) + 1) for at in tries), default=None)

    def _claim_part(
        self, ids: Sequence[str], places: Mapping[str, float], claimed: list[ClaimedJob]
    ) -> Exception | None:
        """Claim them all in one transaction; or the reason why one of them cannot be."""
        if not ids:
            return None
        began = time.monotonic()
        try:
            with self.followed(), self._database.transaction() as conn:
                store.wait_briefly(conn)
                got = self._claim(conn, ids, places)
        except Exception as error:
            if not may_be_one_rows(error):
                raise
            return error
        self.since = self.since if claimed else began
        claimed += got
        for id_ in ids:
            self._aside.pop(id_, None)
        return None

    def _set_aside(self, id_: str, error: Exception, before: Aside | None, *, keyed: bool, said: bool) -> None:
        if before is None and len(self._aside) >= MAX_ASIDE:
            raise error
        now = time.monotonic()
        first, last = LOCKED_PAUSES if may_pass(error) else ODD_PAUSES
        pause = first if before is None else min(2 * before.pause, last)
        self._aside[id_] = Aside(now + pause, pause, keyed, before.since if before else now, said)
        if not said or (before and before.said):
            return
        if is_contended(error):
            log.warning(
                "job %s waits for a lock that another transaction holds, or the like; the others go on: %s",
                id_,
                first_line(error),
            )
        else:
            log.error("job %s cannot be claimed and is left alone; the others go on: %s", id_, first_line(error))


def _is_like_an_outage(error: Exception) -> bool:
    return may_pass(error) and not is_contended(error)


def _pick_in_place(
    places: Mapping[str, float], rows: Sequence[store.DueJob], busy_keys: Collection[str]
) -> list[store.DueJob]:
    """Not those that have moved in the lines of their keys since they were found: claimed, run and tried again by
    another worker, while this one was held up. Older jobs may be ahead of them now."""
    return store.pick_free([row for row in rows if _is_at(row, places.get(row.id))], busy_keys)


def _is_at(row: store.DueJob, place: float | None) -> bool:
    """To the millisecond, which is what run_at has."""
    return place is None or abs(row.run_at.timestamp() - place) < 0.0005
