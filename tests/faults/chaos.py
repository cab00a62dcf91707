"""A chaos run: workers and producers under a random mix of faults, and then a verdict over everything they did.

    python -m tests.faults.chaos --minutes 60 --seed 1

The seed gives the faults, their order and their lengths; what they hit is a matter of the moment. What happened is
kept when a promise was broken, or with --keep: history.jsonl, verdict.json, a log for each process and the server's.
Of a run that broke a promise the database is kept too, as the folder `data`, to be looked at with any server.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from sqlane_sa.demo.errors import ServerError
from tests.faults import faults
from tests.faults.faults import Fault, Steps
from tests.faults.history import History
from tests.faults.report import print_report
from tests.faults.seeded import BUGS
from tests.faults.verdict import Counted, Times, Verdict, judge, load
from tests.faults.world import OPTIONS, Plan, World, new_world
from tests.model import bugs

JOBS_PER_SECOND = 600
"""Asked for; outages, and producers that hold back while workers are far behind, leave about half of it."""
MAX_BACKLOG = 5_000
TICK = 0.05
WARM_UP_TIMEOUT = 90.0
DRAIN_TIMEOUT = 600.0
NO_PROGRESS_TIMEOUT = 45.0
PRODUCERS_TIMEOUT = 30.0
HARMLESS = (faults.LOST_WAKEUP, "snapshot held", "kill -9 producer")
"""Faults in which no worker has an excuse for waiting."""
TIMES = Times(float(OPTIONS["lease"]), float(OPTIONS["sweep_interval"]), float(OPTIONS["poll_interval"]))


BACKLOG = "SELECT count(*) FROM (SELECT FROM sqlane_jobs WHERE status = 'pending' LIMIT :most) AS s"


class Lane:
    """One fault after the other, with a pause between."""

    def __init__(self, kinds: list[Fault], world: World, seed: str, longest_pause: float) -> None:
        self._kinds = [one for one in kinds if not world.plan.only or one.kind in world.plan.only]
        self._world = world
        self._chance = random.Random(seed)
        self._longest_pause = longest_pause
        self._order: list[Fault] = []
        self._kind = ""
        self._steps: Steps | None = None
        self._started_at = 0.0
        self._next_at = time.monotonic()

    def tick(self) -> None:
        """Begin, go on with or end a fault, when it is time."""
        if time.monotonic() < self._next_at:
            return
        if self._steps is None:
            # A worker that starts would find by itself what is to be found by polling.
            if not self._kinds or faults.LOST_WAKEUP in self._world.pauses:
                return
            self._begin()
        self._advance()

    def close(self) -> None:
        """End the fault that lasts."""
        if self._steps is not None:
            self._steps.close()
            self._ended(None)

    def _begin(self) -> None:
        kind = self._next_kind()
        self._kind, self._started_at = kind.kind, time.time()
        self._steps = kind.inject(self._world, random.Random(self._chance.random()))

    def _next_kind(self) -> Fault:
        """Each kind once in a random order, and from then on by weight."""
        if not self._order:
            first = self._chance.sample(self._kinds, len(self._kinds))
            self._order = first + self._chance.choices(self._kinds, [one.weight for one in self._kinds], k=10_000)
        return self._order.pop(0)

    def _advance(self) -> None:
        assert self._steps is not None
        try:
            self._next_at = time.monotonic() + next(self._steps)
        except StopIteration:
            self._ended(None)
        except DBAPIError as error:
            # The database refused the fault itself: a lock that it did not get, a session ended by the other lane.
            self._ended(f"{type(error).__name__}: {error.orig}")

    def _ended(self, problem: str | None) -> None:
        self._world.history.window(self._kind, self._started_at, problem)
        self._steps = None
        self._next_at = time.monotonic() + self._chance.uniform(0.2, self._longest_pause)


def run(plan: Plan, folder: Path) -> Verdict:
    """The run and its verdict. Raises what is no fault of the queue's, such as a server that does not start."""
    history = History(folder / "history.jsonl")
    history.note("run", **plan._asdict())
    try:
        with new_world(plan, folder, history) as world:
            try:
                verdict = _run(world)
                if not verdict.kept and plan.bug is None:
                    world.server.stop()
                    shutil.copytree(world.server.data, folder / "data")
                return verdict
            finally:
                shutil.copy(world.server.log, folder / "server.log")
    finally:
        history.close()


def _run(world: World) -> Verdict:
    _warm_up(world)
    _disturb(world)
    bad = _finish_producers(world)
    _drain(world)
    bad += world.workers.stop() + world.workers.broken + world.producers.broken
    with world.admin.connect() as conn:
        load(conn, producers_know(world.folder), world.history.windows)
        disturbances = [window for window in world.history.windows if window.kind not in HARMLESS]
        processes = {kind.kind for kind in faults.PROCESSES}
        outages = [window for window in disturbances if window.kind not in processes]
        verdict = judge(conn, TIMES, outages, disturbances)
    broken = Counted("processes that broke", "ended by themselves, or not when told", len(bad), False, bad[:5])
    verdict = verdict._replace(counts=[*verdict.counts, broken])
    (world.folder / "verdict.json").write_text(json.dumps(as_json(verdict), indent=1))
    return verdict


def producers_know(folder: Path) -> dict[str, str]:
    from tests.faults.producers import read_books

    return read_books(folder)


def _warm_up(world: World) -> None:
    """Until the first job has ended."""
    deadline = time.monotonic() + WARM_UP_TIMEOUT
    while not world.scalar("SELECT EXISTS (SELECT FROM moves WHERE event = 'complete')"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no job has ended within {WARM_UP_TIMEOUT:g} s; see the logs")
        world.tend()
        time.sleep(TICK)


def _disturb(world: World) -> None:
    end = time.monotonic() + world.plan.seconds
    lanes = [
        Lane(faults.PROCESSES, world, f"{world.plan.seed} processes", 5.0),
        Lane(faults.DATABASES, world, f"{world.plan.seed} databases", 4.0),
    ]
    looked_at = 0.0
    try:
        while time.monotonic() < end:
            world.tend()
            for lane in lanes:
                lane.tick()
            if time.monotonic() - looked_at > 1:
                looked_at = time.monotonic()
                _hold_back(world)
            time.sleep(TICK)
    finally:
        for lane in lanes:
            lane.close()


def _hold_back(world: World) -> None:
    """Producers wait while the workers are far behind: the run is about faults, not about a backlog."""
    try:
        pending = world.scalar(BACKLOG, most=MAX_BACKLOG)
        moves = world.scalar("SELECT last_value FROM move_number")
    except DBAPIError:
        return  # an outage, as planned
    world.history.note("look", pending=pending, moves=moves)
    if pending >= MAX_BACKLOG:
        world.pause("backlog")
    else:
        world.resume("backlog")


def _finish_producers(world: World) -> list[str]:
    """Names of those that did not end in time."""
    world.history.note("calm")
    (world.folder / "stop").touch()
    world.producers.open = False
    for process in world.producers.processes:
        process.expected = True
    deadline = time.monotonic() + PRODUCERS_TIMEOUT
    while any(process.running for process in world.producers.processes) and time.monotonic() < deadline:
        world.workers.tend()
        time.sleep(TICK)
    late = [process.name for process in world.producers.processes if process.running]
    failed = [process.name for process in world.producers.processes if process.popen.poll() not in (0, None)]
    world.producers.close()
    return late + failed


def _drain(world: World) -> None:
    """Until every job has ended and the sweeps have had two rounds, or nothing ends any more."""
    deadline = time.monotonic() + DRAIN_TIMEOUT
    moves, moved_at = -1, time.monotonic()
    while time.monotonic() < min(deadline, moved_at + NO_PROGRESS_TIMEOUT):
        world.workers.tend()
        if not world.scalar(faults.UNFINISHED):
            _wait(world, faults.find_untold(world))
            break
        now = world.scalar("SELECT last_value FROM move_number")
        if now != moves:
            moves, moved_at = now, time.monotonic()
        time.sleep(0.2)
    _wait(world, iter([TIMES.lease + 3 * TIMES.sweep]))
    world.history.note("rest")


def _wait(world: World, steps: Steps) -> None:
    for seconds in steps:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            world.workers.tend()
            time.sleep(TICK)


def as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "kept": verdict.kept,
        "figures": verdict.figures,
        "counts": [one._asdict() | {"kept": one.kept} for one in verdict.counts],
        "recoveries": [one._asdict() | {"kept": one.kept} for one in verdict.recoveries],
        "after": verdict.after,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, help=f"how many to enqueue; {JOBS_PER_SECOND} a second unless given")
    parser.add_argument("--workers", type=int, default=3)
    known = [*BUGS, *bugs.BUGS]
    parser.add_argument("--bug", choices=known, metavar="NAME", help="put this bug into the workers; the run must fail")
    kinds = [kind.kind for kind in (*faults.PROCESSES, *faults.DATABASES)]
    parser.add_argument(
        "--only", choices=kinds, action="append", metavar="KIND", help="this kind of fault; may be repeated"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep history, logs and verdict there")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    seconds = options.minutes * 60
    jobs = options.jobs or int(seconds * JOBS_PER_SECOND)
    plan = Plan(seconds, options.seed, jobs, options.workers, options.bug, tuple(options.only or ()))
    folder = options.keep or Path(tempfile.mkdtemp(prefix="sqlane-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty; a run needs a folder of its own")
    started = time.monotonic()
    try:
        verdict = run(plan, folder)
    except BaseException:
        print(f"the run broke off; what there is of it is in {folder}", file=sys.stderr)
        raise
    print_report(plan, verdict, time.monotonic() - started)
    if verdict.kept and options.keep is None:
        shutil.rmtree(folder)
    elif not verdict.kept:
        print(f"History, logs, verdict and database: {folder}\nAgain: {command(plan)}")
    return 0 if verdict.kept else 1


def command(plan: Plan) -> str:
    """What repeats the run."""
    bug = f" --bug '{plan.bug}'" if plan.bug else ""
    only = "".join(f" --only '{kind}'" for kind in plan.only)
    return (
        f"python -m tests.faults.chaos --minutes {plan.seconds / 60:g} --seed {plan.seed} --jobs {plan.jobs} "
        f"--workers {plan.workers}{bug}{only}"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(str(error))
