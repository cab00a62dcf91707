"""One handler, here and now: for a drain, which has neither threads nor a loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from sqlalchemy.util.concurrency import await_only, greenlet_spawn, in_greenlet

from sqlane_sa.values.outcome import Outcome, Released
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.running import SHUTDOWN, RunningJob

SIGNAL_LOOK = 0.5

Ended = tuple[Outcome | None, BaseException | None]
"""How a handler ended, and what ends the drain once that is written: the interrupt of a test runner."""


def call(execution: Execution, job: RunningJob) -> Ended:
    """Call the handler of a claimed job and wait for its end, within an event loop or without one."""
    interrupt: BaseException | None = None
    if not job.definition.is_async:
        outcome = execution.run(job)
    elif in_greenlet():
        outcome, interrupt = _in_this_loop(execution, job)
    else:
        outcome, interrupt = _in_new_loop(execution, job)
    if isinstance(job.error, KeyboardInterrupt):
        interrupt = job.error
    if interrupt is not None and isinstance(job.error, KeyboardInterrupt | asyncio.CancelledError):
        outcome = Released(None)  # no fault of the job
    return outcome, interrupt


def _in_new_loop(execution: Execution, job: RunningJob) -> Ended:
    """In a thread of its own: this one may have a running loop already. An interrupt here cancels the handler."""

    async def run() -> Outcome | None:
        job.task = asyncio.current_task()
        job.started_at = time.monotonic()
        return await execution.run_async(job)

    outcomes: list[Outcome | None] = []
    interrupt: BaseException | None = None
    with ThreadPoolExecutor(1, "sqlane-drain") as thread:
        thread.submit(int).result()  # it has started: an interrupt does not find it half-way
        try:
            ended = thread.submit(lambda: outcomes.append(asyncio.run(run())))
            # By and by: a signal that the system hands to another thread does not end a wait of this one.
            while not wait([ended], SIGNAL_LOOK).done:
                pass
            ended.result()
        except KeyboardInterrupt as error:
            interrupt = error
            job.cancel(SHUTDOWN)
    return outcomes[0] if outcomes else Released(None), interrupt


def _in_this_loop(execution: Execution, job: RunningJob) -> Ended:
    """Within `run_sync`: a task of the running loop. The handler may use what belongs to that loop, such as the
    caller's connection; a cancellation of the caller's task reaches the handler."""
    caller = asyncio.current_task()
    assert caller is not None
    before = caller.cancelling()
    interrupt: BaseException | None = None
    task = asyncio.ensure_future(greenlet_spawn(_step_by_step, execution, job))
    try:
        await_only(task)
    except asyncio.CancelledError as error:
        interrupt = error
    if interrupt is None and caller.cancelling() > before:
        interrupt = asyncio.CancelledError()
    return Released(None) if task.cancelled() else task.result(), interrupt


def _step_by_step(execution: Execution, job: RunningJob) -> Outcome | None:
    """Run the coroutine in this greenlet: what it calls, such as ctx.enqueue, can use an async connection."""
    coroutine = execution.run_async(job)
    step: Callable[[], Any] = partial(coroutine.send, None)
    while True:
        try:
            awaited = step()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            await_only(_HandedOn(awaited))
            step = partial(coroutine.send, None)
        except BaseException as error:
            step = partial(coroutine.throw, error)


class _HandedOn:
    """What a coroutine waits for, for the loop to wait for it."""

    def __init__(self, awaited: object) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[object, None, None]:
        yield self._awaited
