"""A job queue in the PostgreSQL database that an application already has, for SQLAlchemy 2 and Alembic."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlane_sa.queue import JobHandle, Queue
    from sqlane_sa.values.backoff import Backoff
    from sqlane_sa.values.errors import (
        AttemptsExhaustedError,
        AutocommitError,
        DefinitionError,
        DuplicateDefinitionError,
        HandleError,
        HandlerExitError,
        InvalidJobError,
        JobTimeoutError,
        PayloadError,
        SchemaAheadError,
        SchemaBehindError,
        SchemaBusyError,
        SchemaError,
        SqlaneError,
        StalledError,
        UnknownNameError,
        WorkerError,
    )
    from sqlane_sa.values.job import Enqueued, Job, NameStats, NewJob
    from sqlane_sa.values.outcome import Discard, Retry, Snooze
    from sqlane_sa.worker import Worker
    from sqlane_sa.worker.context import JobContext
    from sqlane_sa.worker.transactions import CommitRefusedError
else:
    # Each name when it is first asked for. Alembic imports this package whenever it is imported itself (its plugin is
    # in here), in applications that have nothing to do with a queue too: it must cost them nothing.
    _NAMES = {
        "queue": ("JobHandle", "Queue"),
        "values.backoff": ("Backoff",),
        "values.errors": (
            "AttemptsExhaustedError",
            "AutocommitError",
            "DefinitionError",
            "DuplicateDefinitionError",
            "HandleError",
            "HandlerExitError",
            "InvalidJobError",
            "JobTimeoutError",
            "PayloadError",
            "SchemaAheadError",
            "SchemaBehindError",
            "SchemaBusyError",
            "SchemaError",
            "SqlaneError",
            "StalledError",
            "UnknownNameError",
            "WorkerError",
        ),
        "values.job": ("Enqueued", "Job", "NameStats", "NewJob"),
        "values.outcome": ("Discard", "Retry", "Snooze"),
        "worker": ("Worker",),
        "worker.context": ("JobContext",),
        "worker.transactions": ("CommitRefusedError",),
    }
    _HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


logging.getLogger("sqlane_sa").addHandler(logging.NullHandler())

__all__ = [
    "AttemptsExhaustedError",
    "AutocommitError",
    "Backoff",
    "CommitRefusedError",
    "DefinitionError",
    "Discard",
    "DuplicateDefinitionError",
    "Enqueued",
    "HandleError",
    "HandlerExitError",
    "InvalidJobError",
    "Job",
    "JobContext",
    "JobHandle",
    "JobTimeoutError",
    "NameStats",
    "NewJob",
    "PayloadError",
    "Queue",
    "Retry",
    "SchemaAheadError",
    "SchemaBehindError",
    "SchemaBusyError",
    "SchemaError",
    "Snooze",
    "SqlaneError",
    "StalledError",
    "UnknownNameError",
    "Worker",
    "WorkerError",
]
