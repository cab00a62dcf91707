"""Event loops without what only some systems have."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker
from tests.worker.conftest import SHORT


@pytest.fixture
def no_loop_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""

    def refuse(*args: Any) -> None:
        raise NotImplementedError

    for kind in (asyncio.AbstractEventLoop, asyncio.SelectorEventLoop):
        monkeypatch.setattr(kind, "add_signal_handler", refuse)
        monkeypatch.setattr(kind, "remove_signal_handler", refuse)


@pytest.mark.usefixtures("no_loop_signals")
@pytest.mark.skipif(os.name != "posix", reason="sends itself SIGTERM")
def test_loops_that_take_no_signal_handlers(queue: Queue, engine: sa.Engine, enqueue: Any, sql: Any) -> None:
    """K122: `run` in the main thread, `def` and `async def`, ended by a signal."""
    ran = threading.Barrier(3, timeout=60)
    queue.job("sync")(lambda payload: ran.wait() and None)

    @queue.job("async")
    async def asynchronous(payload: Any) -> None:
        await asyncio.to_thread(ran.wait)

    ids = [enqueue("sync"), enqueue("async")]

    def stop_when_both_have_run() -> None:
        ran.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop_when_both_have_run)
    stopper.start()
    Worker(engine, queue, **SHORT).run()
    stopper.join()
    assert sorted(sql("SELECT id, status FROM sqlane_jobs")) == sorted((id_, "completed") for id_ in ids)
