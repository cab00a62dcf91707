"""Where a running handler is: its frames as text, for the error of one that has overrun its timeout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import dropwhile
from types import FrameType
from typing import Any

from sqlane_sa.values.failure import stack_text
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.running import RunningJob

CALLS = (Execution._call.__code__, Execution._call_async.__code__)
"""The frames of ours that call handlers: what is below them is the handler's."""

AWAITS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"))


def stack_of(job: RunningJob) -> str:
    """Like the traceback of an error, without any values; "" where the handler cannot be seen. Never raises."""
    try:
        frames = _frames_in_thread(job) if job.task is None else _frames_of_task(job)
        text = stack_text(list(dropwhile(lambda frame: frame.f_code not in CALLS, frames))[1:])
    except Exception:  # it runs on meanwhile, in another thread
        return ""
    # The thread takes its next job after that: until then the frames are this one's.
    return "" if job.ended else text


def _frames_in_thread(job: RunningJob) -> list[FrameType]:
    """The outermost first."""
    found: list[FrameType] = []
    frame = sys._current_frames().get(job.thread or 0)
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _frames_of_task(job: RunningJob) -> list[FrameType]:
    """Those of the thread, where the task runs now and blocks the event loop; or what it awaits."""
    coroutine: Any = None if job.task is None else job.task.get_coro()
    running = _frames_in_thread(job)
    return running if coroutine.cr_frame in running else list(_awaited(coroutine))


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """As far as there are coroutines: a future, or another task, is where it ends."""
    while coroutine is not None:
        frame, following = next((names for names in AWAITS if hasattr(coroutine, names[0])), ("", ""))
        at = getattr(coroutine, frame, None)
        if not isinstance(at, FrameType):  # it has run to its end, or is anybody's object
            return
        yield at
        coroutine = getattr(coroutine, following, None)
