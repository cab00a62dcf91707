"""The loop: writes what has finished and claims what can start, in one statement a turn where that is possible.

While a turn is on its way the next results gather, and the writer takes them when they are many. Jobs with mutex keys
are claimed in a transaction of their own, because the first one may have freed keys (see `store.claim`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from sqlalchemy import Connection

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Completed, Released
from sqlane_sa.worker.advice import Strangers
from sqlane_sa.worker.capacity import Capacity
from sqlane_sa.worker.claims import Claims
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.ear import Ear
from sqlane_sa.worker.handlers import Handlers
from sqlane_sa.worker.hints import Hints
from sqlane_sa.worker.keyed import KeyedClaims
from sqlane_sa.worker.looks import Looks, Share
from sqlane_sa.worker.outcomes import (
    Result,
    complete_at_once,
    is_hopeless,
    is_simple,
    may_pass,
    report,
    results_to_write,
    write,
)
from sqlane_sa.worker.results import GATHERING, Results
from sqlane_sa.worker.running import MANY, Finished, RunningJob, RunningJobs
from sqlane_sa.worker.sleep import Sleep
from sqlane_sa.worker.stuck import StuckJobs

BUSY_CLAIM = 50
"""A claim of so many jobs means that the worker will look again by itself: enqueues need not notify."""
MAX_UNWRITTEN = 2_000
"""Jobs that have ended and are not written yet, until fewer are claimed: a process that dies now runs them again."""
HAND_BACK_AFTER = 1.0
"""Seconds that a claimed job may wait for a slot, before another worker gets it."""
PROBE_AFTER = 0.002
"""Seconds from a wake-up's claim to the probe for what else there is. A short handler has ended by then, and one probe
sees what it has enqueued too; and nothing keeps its thread from the interpreter."""


class Loop:
    def __init__(
        self,
        database: Database,
        queue: Queue,
        jobs: RunningJobs,
        handlers: Handlers,
        names: Sequence[str],
        *,
        worker_id: str,
        lease: float,
        poll_interval: float,
        wakeups: bool,
    ) -> None:
        self._database = database
        self._queue = queue
        self._jobs = jobs
        self._handlers = handlers
        self._looks = Looks(names, poll_interval)
        self._claims = Claims(database, queue, worker_id=worker_id, lease=lease)
        self._keyed = KeyedClaims(database, queue, self._claims)
        self._results = Results(database, queue, jobs)
        self._stuck = StuckJobs(database, queue.tables, jobs)
        self._capacity = Capacity(handlers.concurrency)
        self._lease = lease
        self._sleep = Sleep(queue.tables, worker_id, wakeups)
        self._hints = Hints()
        self._strangers = Strangers(queue)
        self.ear = Ear(jobs.wake.set)
        self._started_at = 0.0
        self._supposed = False
        self._busy = False
        self.claiming = True
        self.idle = threading.Event()
        self.settled = threading.Event()
        """No claim is on its way any more, and none will be."""

    def run_once(self) -> float:
        """One turn, and when there was nothing to do, the wait for the next."""
        self._jobs.wake.clear()
        now = time.monotonic()
        self._hear(now)
        looking = self._sleep.look_at <= now
        if looking:
            self._looks.at_once()
        did = self.turn()
        found = self._started_at >= now
        if looking:
            self._sleep.looked(now, time.monotonic(), found)
        if self._sleep.streaming:
            self._looks.not_before(self._sleep.look_at)
        elif self._supposed and found:
            self._looks.not_before(time.monotonic() + PROBE_AFTER)
        if not did or (self._supposed and found):
            self._rest()
        return 0.0

    def _hear(self, now: float) -> None:
        """Note what has arrived from those who enqueue. A worker that looks by itself is not meant."""
        wake_ups = self.ear.hear()
        if wake_ups and not self._sleep.streaming:
            self._sleep.stream.heard(wake_ups, now)
            self._hints.note()

    def wake(self) -> None:
        """Look at once: there may be new jobs or free keys. A hint, and called by any thread."""
        # No more than a note: when to look is the loop's own, which may be about to set it from what it saw before.
        if self._hints.note():
            self._jobs.wake.set()

    def rely_on_wakeups(self, arrive: bool) -> None:
        """Whether to ask for them at all. Called by the listener, for what it has found out."""
        self._sleep.wakeups = arrive

    def stop_claiming(self) -> None:
        """Start nothing more, and hand back what was not started yet. Called by any thread."""
        self.claiming = False
        self._hand_back()
        self._jobs.wake.set()

    @property
    def asleep(self) -> bool:
        """Whether the database says that this worker waits for wake-ups."""
        return self._sleep.asleep

    def turn(self) -> bool:
        """Write and claim; whether anything was done. Results that could not be written wait for the next turn."""
        if not self.claiming:
            self.settled.set()
        self._recall()
        self._hand_back()
        before = time.monotonic()
        finished = self._take_finished(before)
        timed_out = self._stuck.take(before)
        # Counted here: what the writer writes from now on may have enqueued something after this turn's looks.
        beside = self._results.count_written_beside()
        self._keyed.lines.add(self._jobs.take_freed())
        if finished or beside:
            self._looks.ended(before)
        try:
            claimed = self._write_and_claim(finished, timed_out)
        except BaseException:
            self._results.put_back(finished, timed_out)
            raise
        self._free_lines(self._results.forget(finished))
        self._start(claimed, before)
        began = time.monotonic()
        apart = self._claim_apart()
        self._start(apart, max(began, self._claims.since))
        began = time.monotonic()
        keyed = self._claim_keyed()
        if claimed or apart or keyed:
            # All of it is the time in which slots come free: without the claim of keys, theirs would never be large.
            self._capacity.measure(*self._handlers.progress(), time.monotonic() - before)
        self._start(keyed, max(began, self._claims.since))
        self._write_late()
        if self._supposed:
            self._hints.followed(time.monotonic(), bool(claimed or apart or keyed))
        return bool(finished or claimed or apart or keyed)

    def _take_finished(self, now: float) -> list[Finished]:
        many_come = self._handlers.active >= MANY and self._capacity.ends_within_a_turn(MANY)
        return self._results.take(now, many_come=many_come, claiming=self._want() > 0 and self._looks.is_due(now))

    def _write_and_claim(self, finished: Sequence[Finished], timed_out: Sequence[RunningJob]) -> list[ClaimedJob]:
        results = results_to_write(finished)
        now = time.monotonic()
        self._supposed = supposed = self._hints.take(now)
        if supposed:
            self._looks.suppose_due(now)
        shares = self._shares()
        # Also with work at hand: a backlog of one name must not hide the others. After a wake-up the claim comes first.
        probing = self.claiming and self._looks.probe_at <= now and not (supposed and shares)
        signing_off = self._signing_off(now)
        if not (results or timed_out or shares or probing or signing_off):
            return []
        try:
            if timed_out or signing_off or not all(is_simple(*result) for result in results):
                return self._in_transaction(results, timed_out, shares, probing=probing, signing_off=signing_off)
            results = self._complete_first(results)
            return self._in_one_statement(results, shares, probing=probing)
        except Exception as error:
            self._go_apart(error, results, timed_out)
            return []

    def _signing_off(self, now: float) -> bool:
        """Whether enqueues need not notify any more."""
        needless = self._busy or self._sleep.stream.flows(now)
        return self.asleep and (needless or not (self.claiming and self._sleep.wakeups))

    def _complete_first(self, results: Sequence[Result]) -> list[Result]:
        """In statements of their own, those that free keys and those that were passed over before; the results that are
        left. Before what claims: nothing may fail after that."""
        now = time.monotonic()
        first = [result for result in results if result[0].mutex_keys or result[0].passed_over]
        passed_over = complete_at_once(self._database, self._queue, first)
        locked = {job for job, _ in passed_over}
        self._results.written([result for result in first if result[0] not in locked])
        self._results.passed_over(passed_over, now)
        return [result for result in results if not (result[0].mutex_keys or result[0].passed_over)]

    def _in_one_statement(self, results: Sequence[Result], shares: list[Share], *, probing: bool) -> list[ClaimedJob]:
        """Nothing may fail after it: what it claimed has to start."""
        if probing:
            with self._database.statement() as conn:
                self._probe(conn)
            shares = self._shares()
        if not (results or shares):
            return []
        began = time.monotonic()
        with self._claims.followed(), self._database.statement() as conn:
            marks = self._looks.low_water_marks()
            if results or marks:
                turn = self._claims.turn(conn, [job for job, _ in results], shares, marks)
            else:  # as after a wake-up, where each tenth of a millisecond counts
                turn = store.Turn([], self._claims.plain(conn, shares))
        if turn.skipped:
            skipped = set(turn.skipped)
            self._results.passed_over([result for result in results if result[0].id in skipped], began)
        if shares:
            self._claimed(shares, turn.claimed, began, marked=True)
        return turn.claimed

    def _in_transaction(
        self,
        results: Sequence[Result],
        timed_out: Sequence[RunningJob],
        shares: list[Share],
        *,
        probing: bool,
        signing_off: bool,
    ) -> list[ClaimedJob]:
        claimed: list[ClaimedJob] = []
        with self._claims.followed(), self._database.transaction() as conn:
            changed = write(conn, self._queue, results) if results else []
            if timed_out:
                self._stuck.mark(conn, timed_out)
            if signing_off:
                self._sleep.awake(conn)
            if not self.claiming and any(isinstance(outcome, Released) for _, outcome in results):
                store.wake(conn, self._queue.tables)
            if probing:
                self._probe(conn)
                shares = self._shares()
            began = time.monotonic()
            if shares:
                claimed = self._claims.plain(conn, shares)
        self._busy = False
        if shares:
            self._claimed(shares, claimed, began, marked=False)
        report(results, changed)
        self._after_write(results)
        return claimed

    def _claimed(self, shares: list[Share], claimed: list[ClaimedJob], began: float, *, marked: bool) -> None:
        self._looks.claimed(shares, claimed, began, supposed=self._supposed, marked=marked)
        self._busy = len(claimed) >= BUSY_CLAIM

    def _recall(self) -> None:
        """Jobs of claims whose commit was never acknowledged, and which the database has as ours."""
        if self._claims.in_doubt:
            known, began = self._jobs.locks(), time.monotonic()
            self._start([job for job in self._claims.recall() if (job.id, job.lock_token) not in known], began)

    def _go_apart(self, error: Exception, results: Sequence[Result], timed_out: Sequence[RunningJob]) -> None:
        """The turn failed for one of its rows: what it was to write is written apart, and the next claims find it."""
        if is_hopeless(error) and (results or timed_out or not self._claims.apart):
            self._claims.suspect()
        elif not ((results or timed_out) and may_pass(error)):
            raise error
        self._stuck.mark_apart(timed_out)
        self._results.write_apart(results)
        self._after_write(results)
        self._looks.again()

    def _write_late(self) -> None:
        done = self._results.write_late()
        self._free_lines(done)
        self._after_write(done)

    def _claim_apart(self) -> list[ClaimedJob]:
        shares = self._looks.share(self._want()) if self._claims.apart else []
        if not shares:
            return []
        began = time.monotonic()
        claimed = self._claims.plain_apart(shares)
        self._looks.claimed(shares, claimed, began, supposed=False, marked=False)
        return claimed

    def _shares(self) -> list[Share]:
        """What to claim together with the writing."""
        return [] if self._claims.apart else self._looks.share(self._want())

    def _claim_keyed(self) -> list[ClaimedJob]:
        now = time.monotonic()
        want = self._want()
        names = self._looks.keyed_names(now) if want else set()
        looking = self._looks.keyed_at <= now
        if not names or not (looking or self._keyed.lines):
            return []
        if looking:
            self._looks.looked_keyed(now)
        look = self._keyed.claim(names, want, looking=looking, asleep=self.asleep)
        if look.rest:
            self._looks.rest_keyed(now, look.next_ms, self.asleep)
        return look.claimed

    def _probe(self, conn: Connection) -> None:
        began = time.monotonic()
        lanes = store.probe_lanes(conn, self._queue.tables)
        self._looks.probed(began, lanes)
        self._strangers.note(lanes)

    def _want(self) -> int:
        if not self.claiming:
            return 0
        return self._capacity.want(max(self._handlers.active, self._unwritten()))

    def _unwritten(self) -> int:
        """How many more jobs have ended and are not written yet than there may be."""
        return len(self._jobs) - MAX_UNWRITTEN

    def _after_write(self, results: Sequence[Finished]) -> None:
        if any(not isinstance(outcome, Completed) for _, outcome in results):
            self._looks.probe_at = 0.0  # to learn when the retried and released ones are due
        if any(job.claimed.mutex_keys and not isinstance(outcome, Completed) for job, outcome in results):
            self._looks.keyed_at = 0.0

    def _free_lines(self, done: Sequence[Finished]) -> None:
        for job, _ in done:
            if job.claimed.mutex_keys:
                self._keyed.lines.add(job.claimed.mutex_keys)

    def _start(self, claimed: Sequence[ClaimedJob], began: float) -> None:
        """What a claim that began then got: the leases may count from its beginning."""
        if not claimed:
            return
        self.idle.clear()
        definitions = self._queue.definitions
        self._started_at = time.monotonic()
        starting = [RunningJob(job, definitions[job.name], began, self._lease) for job in claimed]
        self._jobs.add(*starting)
        if self.claiming:
            self._handlers.submit(starting)
            if self._supposed:
                # Let the handler's thread have the interpreter: it would get it when this one has nothing more to do.
                time.sleep(0)
        else:  # the stop came while the claim was on its way
            for job in starting:
                self._jobs.finish(job, Released(None))
        if not self.claiming:
            self._hand_back()  # and this one while they were handed over

    def _hand_back(self) -> None:
        """Jobs that wait for a slot longer than expected belong to whoever has one. They keep their time."""
        oldest = self._handlers.oldest_waiting
        if oldest is not None and (not self.claiming or time.monotonic() - oldest > HAND_BACK_AFTER):
            self._capacity.handed_back()
            for job in self._handlers.take_waiting():
                self._jobs.finish(job, Released(None))

    def _rest(self) -> None:
        """Nothing to do: say that this worker waits, look once more, and then wait for a wake-up or the next time."""
        now = time.monotonic()
        free = self.claiming and self._want() > 0
        if free and self._looks.is_due(now):
            return  # this turn had no room for more, and now there is some
        if free and self._sleep.refresh_at < now and self._fall_asleep(now):
            self._looks.at_once()
            return
        if free and self._looks.probe_at > now and not len(self._jobs):
            if not self._results.written_beside and self._looks.saw_the_end(now):
                self.idle.set()
            elif not self._sleep.streaming:
                self._looks.at_once()
                return
        full = self.claiming and not free
        # What makes room is the end of jobs here, which calls the loop; or the writing of results, which does, too.
        self._handlers.refill_at = self._capacity.refill_at if full and self._unwritten() <= 0 else -1
        file = self.ear.file if free and self._heeds_wake_ups(now) else None
        self._wait(self._next_look(now) - now, file, full=full)

    def _fall_asleep(self, now: float) -> bool:
        self._busy = False
        with self._database.transaction() as conn:
            self._sleep.fall(conn)
        return self._sleep.fallen(now)

    def _heeds_wake_ups(self, now: float) -> bool:
        """Whether one that comes now is followed now: the others are heard at the next look."""
        return not self._sleep.streaming and self._hints.closed_until <= now

    def _next_look(self, now: float) -> float:
        if not self.claiming or self._want() <= 0:
            return min(now + HAND_BACK_AFTER, self._results.late_at)
        return min(
            self._looks.next(now),
            self._results.late_at,
            self._hints.next_look(now),
            self._sleep.refresh_at,
            self._sleep.look_at,
        )

    def _wait(self, seconds: float, file: int | None, *, full: bool) -> None:
        # First the flag, then the look: a handler that finishes after it sets the event.
        self._jobs.waiting = True
        if self._jobs.gathering:
            seconds = min(seconds, GATHERING)
        try:
            if seconds > 0 and not self._jobs.awaits_loop and not (full and self._want() > 0):
                self._jobs.wake.wait(seconds, file)
        finally:
            self._jobs.waiting = False
