"""Advice: what a worker says about what looks like a mistake, once."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sqlane_sa.queue import Queue
from sqlane_sa.store import Lane
from sqlane_sa.values.errors import close_names, shown

log = logging.getLogger("sqlane_sa.worker")


def advise(queue: Queue) -> None:
    """A failure job without a handler here is another process's, where `queue.define` says so; a name that nobody
    defines may be a mistyped one, and its jobs would wait for ever."""
    known = queue.definitions
    for name, definition in known.items():
        reaction = definition.failure_job
        if reaction is None:
            continue
        if reaction not in known:
            close = close_names(reaction, known)
            hint = f"did you mean {close[0]}? If" if close else "if"
            log.warning(
                "the failure job of %s, %s, is not defined here; %s another process serves it, queue.define it here",
                name,
                reaction,
                hint,
            )
        elif known[reaction].handler is None:
            log.info("the failure job of %s, %s, has no handler here; another process has to serve it", name, reaction)


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
                log.info(
                    "jobs named %s are due, and this worker does not know the name; if no other process serves it, "
                    "import the module that defines it, on this very Queue",
                    shown(lane.name),
                )

    def _is_old(self, name: str) -> bool:
        return name in self._known or name in self._said
