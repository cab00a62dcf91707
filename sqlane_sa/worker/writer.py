"""The writer: completes jobs while the loop is at a claim, on a connection of its own.

What the server does to complete a job takes as long as what it does to claim one. Under load both go on side by side;
while there is little to do, the loop writes everything itself, in the statement that claims.
"""

from __future__ import annotations

from sqlane_sa.queue import Queue
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.outcomes import complete_at_once, is_simple, may_be_one_rows, results_to_write
from sqlane_sa.worker.running import RunningJobs

KEEP = 10.0
"""Seconds without anything to write, until the connection is closed."""


class Writer:
    """Takes results that have gathered, and leaves to the loop what is more than a completion: other outcomes, and
    whatever could not be written."""

    def __init__(self, database: Database, queue: Queue, jobs: RunningJobs) -> None:
        self._database = database
        self._queue = queue
        self._jobs = jobs

    def run_once(self) -> float:
        """Wait until many results have gathered, and write them."""
        jobs = self._jobs
        jobs.gathered.clear()
        jobs.writer_ready = jobs.writer_waits = True
        if not (jobs.many_gathered or jobs.gathered.wait(KEEP)):
            self._database.let_go()
            jobs.gathered.wait()
        jobs.writer_waits = False
        try:
            while jobs.many_gathered:
                self.write()
        except BaseException:
            # The loop takes over, meets the same error, and knows what to do about it.
            jobs.writer_ready = False
            jobs.wake.set()
            raise
        return 0.0

    def write(self) -> None:
        """Write what there is of completions, and leave the rest to the loop."""
        jobs = self._jobs
        taken = jobs.take_finished()
        simple = [one for one in taken if is_simple(*one)]
        if len(simple) < len(taken):
            jobs.left.extend(one for one in taken if not is_simple(*one))
        results = results_to_write(simple)
        try:
            skipped = complete_at_once(self._database, self._queue, results)
        except BaseException as error:
            jobs.left.extend(simple)
            if not may_be_one_rows(error):
                raise
        else:
            late = {job for job, _ in skipped}
            jobs.passed_over.extend(skipped)
            jobs.freed.extend(key for job, _ in simple if job not in late for key in job.mutex_keys or ())
            jobs.written += len(simple)  # before they are gone, for whoever sees that nothing is left
            jobs.remove([one for one in simple if one[0] not in late])
        jobs.wake.set()
