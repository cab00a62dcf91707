"""Advice: what a worker that starts says about definitions that look like a mistake."""

from __future__ import annotations

import difflib
import logging

from sqlane_sa.queue import Queue

log = logging.getLogger("sqlane_sa.worker")


def advise(queue: Queue) -> None:
    """A failure job need not be defined here, for another process may serve it; but a name that is nearly one that is
    defined here was probably meant to be that."""
    known = queue.definitions
    for name, definition in known.items():
        reaction = definition.failure_job
        if reaction is not None and reaction not in known:
            close = difflib.get_close_matches(reaction, known, n=1)
            level = logging.WARNING if close else logging.INFO
            hint = f"did you mean {close[0]}?" if close else "another process has to serve it"
            log.log(level, "the failure job of %s, %s, is not defined here; %s", name, reaction, hint)
