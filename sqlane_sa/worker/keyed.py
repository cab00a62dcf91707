"""Keyed claims: jobs with mutex keys, found along the lines of keys that came free, or by a look at everything."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker.claims import Claims
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.lines import Lines
from sqlane_sa.worker.outcomes import may_be_one_rows

FIRST_SPARE, LAST_SPARE = 20, 1000
"""Lines that are looked at beyond those needed: not each has somebody who can go on. Few at first, for of those that
have, each costs a check of its head; then four times as many, for of those that have not, each costs next to nothing.
"""
WALK_PAUSE = 1.0
"""Seconds between two walks, while there are enough lines to follow without one."""


class KeyedLook(NamedTuple):
    """What was claimed. To `rest`: there were fewer than wanted, and a look costs something; `next_ms` milliseconds at
    most, where more may start by then."""

    claimed: list[ClaimedJob]
    next_ms: int | None
    rest: bool


class KeyedClaims:
    """Each claim is a transaction of its own: two of them in one would take keys in no order. It is one statement,
    after which nothing may fail before its jobs are noted.

    A freed key is followed by the next job of its line for the price of a few index probes. A look at everything finds
    the others: those of keys that nobody held, and of better priority. It reads windows of due jobs; and where these
    are full of jobs that wait, it walks from key to key.
    """

    def __init__(self, database: Database, queue: Queue, claims: Claims) -> None:
        self._database = database
        self._queue = queue
        self._claims = claims
        self._walk_at = 0.0
        self.lines = Lines()

    def claim(self, names: Collection[str], want: int, *, looking: bool, asleep: bool) -> KeyedLook:
        """Jobs of these names: the first in the lines that are worth it, and when `looking` whatever can start. One
        who is `asleep` learns when to look again by himself."""
        if self._claims.apart:
            return self._apart(names, want)
        claimed: list[ClaimedJob] = []
        next_ms, rest = None, False
        try:
            if looking:
                next_ms, rest = self._look(names, want, claimed, asleep)
            self._follow(names, want, claimed)
        except Exception as error:
            if claimed:
                return KeyedLook(claimed, 0, looking)  # they run; the next turn meets the outage
            if not may_be_one_rows(error):
                raise
            return self._apart(names, want)
        return KeyedLook(claimed, next_ms, rest)

    def _apart(self, names: Collection[str], want: int) -> KeyedLook:
        """Around the rows that cannot be claimed; it looks at everything, and needs no hint."""
        self.lines.clear()
        claimed, next_ms = self._claims.keyed_apart(names, want, self.lines.after_key)
        self.lines.after_key = max((key for job in claimed for key in job.mutex_keys or ()), default="")
        return KeyedLook(claimed, next_ms, len(claimed) < want)

    def _look(
        self, names: Collection[str], want: int, claimed: list[ClaimedJob], asleep: bool
    ) -> tuple[int | None, bool]:
        tables = self._queue.tables
        with self._claims.followed(), self._database.statement() as conn:
            found, short = store.claim_keyed(conn, tables, names=names, limit=want, whole=True, **self._claims.terms())
        claimed += found
        self._leave(found)
        few = len(found) < want
        next_ms = None
        if not found or (asleep and few):
            with self._database.statement() as conn:
                next_ms = store.next_keyed(conn, tables, names=names)
        if short:
            self._walk(short, want - len(found))
        elif few:
            self.lines.clear()  # it saw all that can start
        return next_ms, few

    def _walk(self, names: Collection[str], missing: int) -> None:
        """From key to key, on from where the last walk ended, until there are lines to follow, or once around."""
        now = time.monotonic()
        if len(self.lines) >= missing and now < self._walk_at:
            return
        self._walk_at = now + WALK_PAUSE
        ends = 0 if self.lines.after_key else 1
        while ends < 2:
            with self._database.statement() as conn:
                keys, after_key = store.find_free_lines(
                    conn, self._queue.tables, names=names, after_key=self.lines.after_key
                )
            self.lines.after_key = after_key or ""
            self.lines.add(keys)
            if keys:
                return
            ends += after_key is None

    def _follow(self, names: Collection[str], want: int, claimed: list[ClaimedJob]) -> None:
        spare = FIRST_SPARE
        while self.lines and len(claimed) < want:
            limit = want - len(claimed)
            keys = self.lines.take(limit + spare)
            spare = min(4 * spare, LAST_SPARE)
            with self._claims.followed(), self._database.statement() as conn:
                found = store.claim_heads(
                    conn, self._queue.tables, keys=keys, names=names, limit=limit, whole=True, **self._claims.terms()
                )
            if len(found) == limit:
                self.lines.add(keys)
            claimed += found
            self._leave(found)

    def _leave(self, claimed: Collection[ClaimedJob]) -> None:
        """Their keys are held now: nobody else can go on there."""
        for job in claimed:
            self.lines.drop(job.mutex_keys or ())
