"""A process that a handler forked: it ends where the handler ends."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("sqlane_sa.worker")


def end_if_child(parent: int, error: BaseException | None = None) -> None:
    """Called where a handler ends, by `error` or without one; `parent` is the process that called it.

    A child that it forked does not go on from here: it would be a second worker that writes the job's result over the
    first one's connections, or wait for ever and keep them open.
    """
    if os.getpid() != parent:
        _leave(error)


def _leave(error: BaseException | None) -> None:
    code: object = None if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        log.error("process %d, which a handler forked, ends", os.getpid(), exc_info=error)
    # No exit handlers and no buffers of the parent's: both are a copy of what the parent still has to do.
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
