"""Advice: what a worker says about what looks like a mistake, once."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sqlane_sa.queue import Queue
from sqlane_sa.store import Lane
from sqlane_sa.values.errors import shown

log = logging.getLogger("sqlane_sa.worker")


def advise(queue: Queue) -> None:
    """A failure job need not be defined here, for another process may serve it; but a name that is nearly one that is
    defined here was probably meant to be that."""
    known = queue.definitions
    for name, definition in known.items():
        reaction = definition.failure_job
        if reaction is not None and reaction not in known:
            import difflib  # for this message alone

            close = difflib.get_close_matches(reaction, known, n=1)
            level = logging.WARNING if close else logging.INFO
            hint = f"did you mean {close[0]}?" if close else "another process has to serve it"
            log.log(level, "the failure job of %s, %s, is not defined here; %s", name, reaction, hint)


MAX_STRANGERS = 100
"""Names that are said; whoever may enqueue may make up any number."""


class Strangers:
    """Names of due jobs that this queue does not define: another program serves them, or a module is not imported."""

    def __init__(self, queue: Queue) -> None:
        self._known = queue.definitions
        self._said: set[str] = set()

    def note(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            if len(self._said) < MAX_STRANGERS and lane.delay_ms <= 0 and not self._is_old(lane.name):
                self._said.add(lane.name)
                log.info("jobs named %s are due, and this worker does not know the name", shown(lane.name))

    def _is_old(self, name: str) -> bool:
        return name in self._known or name in self._said
