"""A process that a handler forked: it ends where the handler ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("sqlane_sa.worker")


@contextmanager
def children_end_here() -> Iterator[None]:
    """A child forked within the block does not leave it: it would go on as a second worker that writes the job's result
    over the first one's connections, or wait for ever and keep them open."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            _leave(error)
        raise
    if os.getpid() != process:
        _leave(None)


def _leave(error: BaseException | None) -> None:
    code: object = None if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        log.error("process %d, which a handler forked, ends", os.getpid(), exc_info=error)
    # No exit handlers and no buffers of the parent's: both are a copy of what the parent still has to do.
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
