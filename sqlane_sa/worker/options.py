"""The options of a worker, checked once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sqlane_sa.queue import Queue
from sqlane_sa.values.duration import seconds
from sqlane_sa.values.errors import DefinitionError, InvalidJobError, shown
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.text import check_text

MAX_CONCURRENCY = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """Times in seconds."""

    names: tuple[str, ...]
    concurrency: int
    lease: float
    poll_interval: float
    shutdown_timeout: float
    stall_delay: float
    sweep_interval: float
    wakeups: bool
    worker_id: str
    exit_when_stuck: bool

    @classmethod
    def check(
        cls,
        queue: Queue,
        *,
        names: Iterable[str] | None,
        concurrency: int,
        lease: float | timedelta,
        poll_interval: float | timedelta,
        shutdown_timeout: float | timedelta,
        stall_delay: float | timedelta,
        sweep_interval: float | timedelta,
        wakeups: bool,
        worker_id: str | None,
        exit_when_stuck: bool,
    ) -> Options:
        """Raises `DefinitionError` naming the option, its value and what is allowed."""
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_CONCURRENCY:
            raise DefinitionError(
                f"concurrency={shown(concurrency)} is not an integer from 1 to {MAX_CONCURRENCY}",
                option="concurrency",
                value=concurrency,
            )
        return cls(
            names=served(queue, names),
            concurrency=concurrency,
            lease=seconds(lease, "lease", minimum=0.1),
            poll_interval=seconds(poll_interval, "poll_interval", minimum=0.001),
            shutdown_timeout=seconds(shutdown_timeout, "shutdown_timeout"),
            stall_delay=seconds(stall_delay, "stall_delay"),
            sweep_interval=seconds(sweep_interval, "sweep_interval", minimum=0.01),
            wakeups=_flag(wakeups, "wakeups"),
            worker_id=_default_worker_id() if worker_id is None else _checked_id(worker_id),
            exit_when_stuck=_flag(exit_when_stuck, "exit_when_stuck"),
        )


def _flag(value: object, option: str) -> bool:
    if not isinstance(value, bool):
        raise DefinitionError(f"{option}={shown(value)} is neither True nor False", option=option, value=value)
    return value


def served(queue: Queue, names: Iterable[str] | None) -> tuple[str, ...]:
    """The names this worker claims: those with a handler here. Other names are left to other workers."""
    if not isinstance(queue, Queue):
        raise DefinitionError(f"queue={shown(queue)} is no Queue", option="queue", value=queue)
    if names is not None:
        return _given(queue, names)
    found = tuple(name for name, definition in queue.definitions.items() if definition.handler is not None)
    if not found:
        raise DefinitionError(
            "this queue has no handlers; import the modules whose functions are decorated with queue.job",
            option="names",
            value=names,
        )
    return found


def _given(queue: Queue, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        kind = "a string" if isinstance(names, str) else "no list"
        raise DefinitionError(f"names={shown(names)} is {kind}; give a list of names", option="names", value=names)
    given: dict[str, None] = {}
    for name in names:
        definition = queue.definition(name)
        if definition.handler is None:
            raise DefinitionError(
                f"names holds {name!r}, which has no handler in this process; define it with queue.job",
                option="names",
                value=name,
            )
        given[definition.name] = None
    if not given:
        raise DefinitionError("names is empty; leave it out to serve all names", option="names", value=names)
    return tuple(given)


def _default_worker_id() -> str:
    """Readable, and never the same again: a restarted process must not be taken for the one before it."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"


def _checked_id(worker_id: object) -> str:
    try:
        return check_text(worker_id, "worker_id", max_chars=255, what="a worker_id")
    except InvalidJobError as error:
        raise DefinitionError(str(error), option="worker_id", value=worker_id) from None
