"""The event loop of `async def` handlers, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

log = logging.getLogger("sqlane_sa.worker")

MAX_FAULTS = 100
"""So many errors of the event loop while nothing ran in it, and the worker gives up. Many: each task that was ready may
have made one, with a log that fails."""


class EventLoop:
    """Started at the first use. `give_up` hears when it cannot go on."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._give_up = give_up
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = Context()
        self.tasks: set[asyncio.Task[None] | None] = set()
        """Those that have not ended: the loop itself keeps only weak references."""
        self._stopped = False
        self._faults = 0

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop's thread, soon."""
        with self._lock:
            if self._loop is None:
                self._loop = self._started()
            self._loop.call_soon_threadsafe(function, *args)

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        try:
            threading.Thread(target=self._run, args=(loop,), name="sqlane-async", daemon=True).start()
        except BaseException:
            loop.close()
            raise
        return loop

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Called in the loop's thread. With a context of its own: the caller's may be that of another job. And not by a
        task factory, which a handler may have set: it may refuse the context, or run the handler within this call."""
        assert self._loop is not None
        task = asyncio.Task(coroutine, loop=self._loop, context=self._context.copy())
        self.tasks.add(task)
        return task

    def call_soon(self, function: Callable[[], object]) -> None:
        """Called in the loop's thread."""
        assert self._loop is not None
        self._loop.call_soon(function, context=self._context)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        self._context = copy_context()
        while not self._stopped and self._faults < MAX_FAULTS:
            try:
                loop.call_soon(self._turns)
                loop.run_forever()
            except BaseException as error:
                self._left(error)
        if not self._stopped:
            self._give_up("the event loop of async handlers cannot go on")
        elif not self.tasks:
            loop.close()

    def _turns(self) -> None:
        self._faults = 0

    def _left(self, error: BaseException) -> None:
        """SystemExit in a task that a handler left behind leaves run_forever, and the other tasks go on; an error that
        comes again before anything has run is of the loop itself, such as that of a selector which is closed."""
        self._faults += isinstance(error, Exception)
        if self._faults <= 1:
            with suppress(Exception):  # a handler of the application's log may be what fails
                log.error("a task of a handler stopped the event loop; it goes on", exc_info=error)
