"""A worker whose handlers misbehave at their first run of a job, and end at once at a later one."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Backoff, JobContext, Queue, Worker
from tests.processes import app

queue = Queue()

Payload = dict[str, Any]
Misdeed = Callable[[Payload, JobContext], None]


class OwnExit(BaseException):
    """Not an Exception, and nobody's but the application's."""


def misbehaves(name: str) -> Callable[[Misdeed], Misdeed]:
    """Defines a job of this name, whose first run is the function."""

    def define(misdeed: Misdeed) -> Misdeed:
        @queue.job(name, failure_job="failed", backoff=Backoff(base=0.1, jitter=0.0))
        def handler(payload: Payload, ctx: JobContext) -> None:
            app.note(ctx, "start")
            if app.runs(ctx) == 1:
                process = os.getpid()
                misdeed(payload, ctx)
                if os.getpid() != process:
                    return  # the connections are its parent's
            app.note(ctx, "end")

        return misdeed

    return define


@queue.job("neighbour")
def neighbour(payload: Payload, ctx: JobContext) -> None:
    app.note(ctx, "start")
    time.sleep(payload["seconds"])
    app.note(ctx, "end")


@queue.job("async_neighbour")
async def async_neighbour(payload: Payload, ctx: JobContext) -> None:
    await asyncio.to_thread(app.note, ctx, "start")
    await asyncio.sleep(payload["seconds"])
    await asyncio.to_thread(app.note, ctx, "end")


@queue.job("failed")
def failed(payload: Payload, ctx: JobContext) -> None:
    app.note(ctx, "failed:" + payload["id"])


@misbehaves("regex")
def regex(payload: Payload, ctx: JobContext) -> None:
    """Until one call has held the interpreter for `seconds`: a text longer by a tenth takes half as much again. Or one
    call of a `size`."""
    text = "a" * payload.get("size", 50)
    while match(len(text)) < payload["seconds"]:
        text += text[::10]


@misbehaves("power")
def power(payload: Payload, ctx: JobContext) -> None:
    exponent = payload.get("size", 1 << 16)
    while raise_to(exponent) < payload["seconds"]:
        exponent += exponent // 4


def match(size: int) -> float:
    return time_of(re.match, "a*a*a*a*b", "a" * size)


def raise_to(exponent: int) -> float:
    return time_of(pow, 3, exponent)


def size_for(kind: str, seconds: float) -> int:
    """For one call that takes about so long here: from one of a twentieth of it, and how the times grow."""
    call, size, growth = {"regex": (match, 50, 4.25), "power": (raise_to, 1 << 16, 1.585)}[kind]
    while (took := call(size)) < seconds / 20:
        size += size // 4
    return int(size * (seconds / took) ** (1 / growth))


def time_of(call: Callable[..., object], *arguments: object) -> float:
    before = time.monotonic()
    call(*arguments)
    return time.monotonic() - before


@queue.job("block", backoff=Backoff(base=0.1, jitter=0.0))
async def block(payload: Payload, ctx: JobContext) -> None:
    """Blocks the event loop."""
    app.note(ctx, "start")
    time.sleep(payload["seconds"])
    app.note(ctx, "end")


@misbehaves("os._exit")
def os_exit(payload: Payload, ctx: JobContext) -> None:
    os._exit(3)


@misbehaves("segfault")
def segfault(payload: Payload, ctx: JobContext) -> None:
    ctypes.string_at(0)


@misbehaves("killed")
def killed(payload: Payload, ctx: JobContext) -> None:
    """As by the kernel, when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


@misbehaves("abort")
def abort(payload: Payload, ctx: JobContext) -> None:
    """The interpreter's own end of what cannot go on, as with a broken extension."""
    os.abort()


def limit_memory(more: int) -> tuple[int, int]:
    """Let the process have `more` bytes than it has; the limits before."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, old[1]))
    return old


@misbehaves("memory")
def memory(payload: Payload, ctx: JobContext) -> None:
    """More than the process may have, in one piece."""
    old = limit_memory(64 << 20)
    try:
        bytearray(256 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


@misbehaves("memory in small pieces")
def memory_in_pieces(payload: Payload, ctx: JobContext) -> None:
    """Until nothing is left for the other threads either, and all of it let go."""
    pieces = []
    old = limit_memory(32 << 20)
    try:
        while True:
            pieces.append(bytearray(100_000))
    finally:
        pieces.clear()
        resource.setrlimit(resource.RLIMIT_AS, old)


@misbehaves("fork, and the child returns")
def fork_returns(payload: Payload, ctx: JobContext) -> None:
    wait_for(os.fork())


@misbehaves("fork, and the child raises")
def fork_raises(payload: Payload, ctx: JobContext) -> None:
    if (child := os.fork()) == 0:
        raise OwnExit("of the child")
    wait_for(child)


@misbehaves("fork, and the child leaves by sys.exit")
def fork_exits(payload: Payload, ctx: JobContext) -> None:
    if (child := os.fork()) == 0:
        sys.exit(0)
    wait_for(child)


@misbehaves("fork, and the child leaves by os._exit")
def fork_leaves(payload: Payload, ctx: JobContext) -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    wait_for(child)


@misbehaves("fork, and the child runs on")
def fork_runs_on(payload: Payload, ctx: JobContext) -> None:
    if (child := os.fork()) == 0:
        time.sleep(payload["seconds"])
        os._exit(0)
    app.note(ctx, f"child:{child}")


@queue.job("transactional fork", transactional=True, failure_job="failed", backoff=Backoff(base=0.1, jitter=0.0))
def transactional_fork(payload: Payload, ctx: JobContext) -> None:
    """Both would complete the job, over one connection."""
    app.note(ctx, "start")
    ctx.connection.execute(sa.text("INSERT INTO ledger (job_id, event) VALUES (:id, 'effect')"), {"id": ctx.id})
    if (child := os.fork()) == 0:
        return
    wait_for(child)
    app.note(ctx, "end")


@queue.job("async fork", failure_job="failed", backoff=Backoff(base=0.1, jitter=0.0))
async def async_fork(payload: Payload, ctx: JobContext) -> None:
    app.note(ctx, "start")
    if (child := os.fork()) == 0:
        return
    wait_for(child)
    app.note(ctx, "end")


def wait_for(child: int) -> None:
    """In the parent: the handler ends after its child."""
    if child:
        os.waitpid(child, 0)


@misbehaves("closes sockets")
def closes_sockets(payload: Payload, ctx: JobContext) -> None:
    """All that the process has open, the worker's connections too."""
    os.closerange(3, 1024)


@misbehaves("signals and folder")
def signals_and_folder(payload: Payload, ctx: JobContext) -> None:
    """What a library may do: another folder, and a thread that blocks the signals which end the process."""
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])


@misbehaves("sys.exit in a thread")
def exit_in_thread(payload: Payload, ctx: JobContext) -> None:
    thread = threading.Thread(target=sys.exit, args=(1,))
    thread.start()
    thread.join()


@misbehaves("kills itself with SIGTERM")
def terminates(payload: Payload, ctx: JobContext) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    ctx.cancelled.wait(0.2)


@misbehaves("leaves threads behind")
def leftovers(payload: Payload, ctx: JobContext) -> None:
    for _ in range(5):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


@misbehaves("stack overflow")
def stack_overflow(payload: Payload, ctx: JobContext) -> None:
    def deeper() -> None:
        deeper()

    deeper()


NO_MISDEEDS = {"neighbour", "async_neighbour", "failed", "raises", "async raises"}
"""Jobs that are no kind of misbehaviour by themselves; those that raise do so in as many kinds as there are `EXITS`."""

EXITS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(0),
    "SystemExit with text": lambda: SystemExit("x"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "OwnExit": lambda: OwnExit("own"),
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
}


@misbehaves("raises")
def raises(payload: Payload, ctx: JobContext) -> None:
    raise EXITS[payload["kind"]]()


@queue.job("async raises", failure_job="failed", backoff=Backoff(base=0.1, jitter=0.0))
async def async_raises(payload: Payload, ctx: JobContext) -> None:
    await asyncio.to_thread(app.note, ctx, "start")
    if await asyncio.to_thread(app.runs, ctx) == 1:
        raise EXITS[payload["kind"]]()
    await asyncio.to_thread(app.note, ctx, "end")


def serve(url: str, options: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.WARNING)
    app.engine = sa.create_engine(url)
    Worker(app.engine, queue, **options).run()
