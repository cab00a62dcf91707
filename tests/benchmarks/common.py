"""The protocol of the comparison, for `peer_sqlane.py`: what a script says on its standard output, one JSON a line.

    info                  {"name", "version", "settings", "left_sql"}: `left_sql` finds a row while a job is open
    setup   DSN           makes the tables in an empty database
    one     DSN N         N enqueues, each in a transaction of its own: {"s": seconds}
    bulk    DSN N         N enqueues through the bulk call: {"s": seconds}
    writers DSN N CLIENTS N enqueues as in `one`, shared by so many processes: {"s": seconds}
    trickle DSN N GAP_MS  {"t": [[number, before the commit, after it], ...]}, in epoch seconds
    work    DSN [lat]     works until killed: {"start": now}, and every 10 ms at most {"n": handlers run so far};
                          with `lat`, {"lat": [[number, when its handler began], ...]} besides

Other queues' scripts have a `common` of their own beside them, which says the same (`writers` is ours alone).
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from typing import Any, Protocol

WARM_UP = 20
PAUSE = 0.01


class Peer(Protocol):
    name: str
    version: str
    settings: str
    left_sql: str
    dsn: str

    def setup(self) -> None: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def one(self, i: int) -> None: ...
    def bulk(self, first: int, n: int) -> None: ...
    def work(self) -> None: ...


lat = False
count = 0
seen: list[tuple[int, float]] = []


def tick(number: int) -> None:
    """What a handler does, and all of it."""
    global count
    if lat:
        seen.append((number, time.time()))
    count += 1


def say(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main(peer: Peer) -> None:
    operation, *arguments = sys.argv[1:]
    if operation == "info":
        say(name=peer.name, version=peer.version, settings=peer.settings, left_sql=peer.left_sql)
        return
    peer.dsn = arguments[0]
    if operation == "setup":
        peer.setup()
    elif operation == "work":
        _work(peer, arguments[1:] == ["lat"])
    else:
        _OPERATIONS[operation](peer, *map(float, arguments[1:]))


def _work(peer: Peer, latencies: bool) -> None:
    global lat
    lat = latencies
    threading.Thread(target=_report, daemon=True).start()
    say(start=time.time())
    peer.work()


def _report() -> None:
    said = sent = 0
    while True:
        time.sleep(PAUSE)
        now = count
        if now != said:
            fresh = {"lat": seen[sent:]} if lat else {}
            sent += len(fresh.get("lat", ()))
            say(n=now, **fresh)
            said = now


def _one(peer: Peer, n: float) -> None:
    say(s=_timed(peer, range(int(n))))


def _timed(peer: Peer, numbers: range, gate: Any = None) -> float:
    peer.open()
    for number in range(WARM_UP):
        peer.one(-1 - number)
    if gate is not None:
        gate.wait()
    begin = time.perf_counter()
    for number in numbers:
        peer.one(number)
    took = time.perf_counter() - begin
    peer.close()
    return took


def _bulk(peer: Peer, n: float) -> None:
    peer.open()
    begin = time.perf_counter()
    peer.bulk(0, int(n))
    say(s=time.perf_counter() - begin)
    peer.close()


def _writers(peer: Peer, n: float, clients: float) -> None:
    """The longest of them: all begin at once."""
    fork = multiprocessing.get_context("fork")
    gate, times = fork.Barrier(int(clients)), fork.SimpleQueue()
    share = int(n // clients)

    def write(place: int) -> None:
        times.put(_timed(peer, range(place * share, (place + 1) * share), gate))

    processes = [fork.Process(target=write, args=(place,)) for place in range(int(clients))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    say(s=max(times.get() for _ in processes), n=share * len(processes))


def _trickle(peer: Peer, n: float, gap_ms: float) -> None:
    peer.open()
    times = []
    for number in range(int(n)):
        before = time.time()
        peer.one(number)
        times.append((number, before, time.time()))
        time.sleep(gap_ms / 1000)
    say(t=times)
    peer.close()


_OPERATIONS: dict[str, Any] = {"one": _one, "bulk": _bulk, "writers": _writers, "trickle": _trickle}
