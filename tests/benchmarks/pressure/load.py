"""Producers and workers as processes of their own, and what their handlers saw."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import sqlalchemy as sa

from sqlane_sa import Queue, Worker

SPAWN = multiprocessing.get_context("spawn")
TICK = 0.01
MAX_BATCH = 100
LEASE = 60.0


class Run(NamedTuple):
    """One run of a handler: the job's number, when it began (epoch seconds), and seconds since its enqueue."""

    number: int
    at: float
    waited: float


class Crew:
    """Processes that work: `workers` in each of `processes`. `pids` are theirs, `runs` what they ran, once stopped."""

    def __init__(self, url: str, *, processes: int, workers: int = 1, concurrency: int, names: Sequence[str]) -> None:
        self._stop, self._ready = SPAWN.Event(), SPAWN.Semaphore(0)
        self.done = SPAWN.Value("q", 0)
        self.runs: list[Run] = []
        self._pipes, self._processes = [], []
        for _ in range(processes):
            here, there = SPAWN.Pipe()
            arguments = (url, self._stop, self._ready, self.done, there, workers, concurrency, list(names))
            self._processes.append(SPAWN.Process(target=work, args=arguments))
            self._pipes.append(here)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid]

    @contextmanager
    def working(self) -> Iterator[Crew]:
        """Within, they work; at the end they shut down, and their runs are here."""
        for process in self._processes:
            process.start()
        try:
            for process in self._processes:
                while not self._ready.acquire(timeout=1):
                    if process.exitcode:
                        raise SystemExit("a worker process ended before it had started")
            yield self
            self._stop.set()
            self.runs = [Run(*run) for pipe in self._pipes for run in pipe.recv()]
        finally:
            self._stop.set()
            end(self._processes)

    def wait(self, jobs: int, patience: float = 600.0) -> None:
        """Until so many handlers have run, in all."""
        deadline = time.monotonic() + patience
        while self.done.value < jobs:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.done.value:,} of {jobs:,} jobs ran in {patience:g} s")
            time.sleep(TICK)


def work(
    url: str, stop: Event, ready: Any, done: Any, pipe: Pipe, workers: int, concurrency: int, names: list[str]
) -> None:
    runs: list[Run] = []
    lock = threading.Lock()

    def note(payload: dict[str, Any]) -> None:
        now = time.time()
        with lock:
            runs.append(Run(payload["n"], now, now - payload["at"]))
        with done.get_lock():
            done.value += 1

    queue = Queue()
    for name in names:
        queue.job(name, mutex_keys=keys if name == "keyed" else None, completed_retention=0)(note)
    engine = sa.create_engine(url)
    crew = [Worker(engine, queue, concurrency=concurrency, lease=LEASE) for _ in range(workers)]
    for worker in crew:
        worker.start()
    ready.release()
    stop.wait()
    enders = [threading.Thread(target=worker.stop) for worker in crew]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()
    pipe.send([tuple(run) for run in runs])


def keys(payload: dict[str, Any]) -> list[str]:
    return [f"key:{payload['n'] % 500}"]


def definitions() -> Queue:
    """The queue of those that only enqueue."""
    queue = Queue()
    queue.define("plain", completed_retention=0)
    queue.define("keyed", mutex_keys=keys, completed_retention=0)
    return queue


class Producers:
    """Processes that enqueue `rate` jobs a second in all, each with its own share of the numbers."""

    def __init__(self, url: str, rate: float, processes: int = 2) -> None:
        self._stop = SPAWN.Event()
        self._counts = [SPAWN.Value("q", 0) for _ in range(processes)]
        self._processes = [
            SPAWN.Process(target=produce, args=(url, self._stop, count, place, rate / processes))
            for place, count in enumerate(self._counts)
        ]

    @property
    def committed(self) -> int:
        return sum(count.value for count in self._counts)

    @contextmanager
    def producing(self) -> Iterator[Producers]:
        for process in self._processes:
            process.start()
        try:
            while not all(count.value for count in self._counts):
                time.sleep(TICK)
            yield self
        finally:
            self._stop.set()
            end(self._processes)


def produce(url: str, stop: Event, count: Any, place: int, rate: float) -> None:
    """By the clock: what a slow commit delayed comes in the next transaction."""
    engine, handle = sa.create_engine(url), definitions().definitions["plain"]
    queue = definitions()
    begin = time.monotonic()
    while not stop.is_set():
        due = min(int((time.monotonic() - begin) * rate) + 1 - count.value, MAX_BATCH)
        if due > 0:
            with engine.begin() as conn:
                first, now = count.value, time.time()
                numbers = (place * 10**9 + first + n for n in range(due))
                queue.enqueue_many(conn, [queue.new(handle.name, {"n": n, "at": now}) for n in numbers])
            count.value += due
        stop.wait(TICK)


def end(processes: Sequence[Any]) -> None:
    """Wait for them; what does not end by itself is killed. One that failed ends the run: its figures are none."""
    for process in processes:
        process.join(60)
        if process.exitcode is None:
            process.kill()
            process.join()
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise SystemExit(f"{len(failed)} processes of the run ended with {failed}")


def enqueue(engine: sa.Engine, name: str, jobs: int, first: int = 0) -> float:
    """Enqueue in one transaction; when it had committed (epoch seconds)."""
    queue = definitions()
    now = time.time()
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new(name, {"n": first + n, "at": now}) for n in range(jobs)))
    return time.time()


def lost_and_repeated(runs: Sequence[Run], committed: int) -> tuple[int, int]:
    distinct = len({run.number for run in runs})
    return committed - distinct, len(runs) - distinct


@contextmanager
def beside(*loops: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run loops in threads until the end of the block; each gets the event that ends it."""
    stop = threading.Event()
    threads = [threading.Thread(target=loop, args=(stop,)) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
