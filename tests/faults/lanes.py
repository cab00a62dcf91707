"""Many lanes at once: a connection that is half-open costs time and nothing else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from sqlane_sa.worker.deadlines import Deadlines
from tests.faults.cutting import TRIES, Lane
from tests.faults.proxy import Proxy

T = TypeVar("T")
R = TypeVar("R")


PATIENCE = 30.0
"""Seconds for the calls that nothing is done to."""


class Lanes:
    """The first is the caller's own; the others are for `start`, which hands each piece of work to one that is free."""

    def __init__(self, lanes: list[Lane]) -> None:
        self.first, *others = lanes
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in others:
            self._free.put(lane)
        self._threads = ThreadPoolExecutor(len(others), "lane")

    def start(self, work: Callable[[Lane, T], R], items: Iterable[T]) -> Callable[[], list[R]]:
        """Call what is returned to wait for the results, in the order of the items; it raises when all are done."""

        def one(item: T) -> R:
            lane = self._free.get()
            try:
                return work(lane, item)
            finally:
                self._free.put(lane)

        futures = [self._threads.submit(one, item) for item in items]

        def results() -> list[R]:
            wait(futures)
            return [future.result() for future in futures]

        return results

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


@contextmanager
def open_lanes(urls: list[str], deadline: float) -> Iterator[Lanes]:
    """A lane on each database, all through one proxy. What is half-opened has `deadline` seconds for each call, and
    more on a machine on which that is too short."""
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(urls[0]))
        hurried = [stack.enter_context(watched(deadline * 2**n)) for n in range(TRIES)]
        patient = stack.enter_context(watched(PATIENCE))
        lanes = [Lane(url, proxy, hurried, patient) for url in urls]
        for lane in lanes:
            stack.callback(lane.close)
        all_lanes = Lanes(lanes)
        stack.callback(all_lanes.close)
        yield all_lanes


@contextmanager
def watched(seconds: float) -> Iterator[Deadlines]:
    """Deadlines with the thread that a worker gives them."""
    deadlines = Deadlines(seconds)
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.is_set():
            deadlines.run_once()

    thread = threading.Thread(target=watch, name="deadlines", daemon=True)
    thread.start()
    try:
        yield deadlines
    finally:
        stopped.set()
        deadlines.stop()
        thread.join()
