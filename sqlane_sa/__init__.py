"""A job queue in the PostgreSQL database that an application already has, for SQLAlchemy 2 and Alembic."""

import logging

from sqlane_sa.queue import JobHandle, Queue
from sqlane_sa.values.backoff import Backoff
from sqlane_sa.values.errors import (
    AutocommitError,
    DefinitionError,
    DuplicateDefinitionError,
    HandleError,
    InvalidJobError,
    JobTimeoutError,
    PayloadError,
    SchemaAheadError,
    SchemaBehindError,
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

logging.getLogger("sqlane_sa").addHandler(logging.NullHandler())

__all__ = [
    "AutocommitError",
    "Backoff",
    "DefinitionError",
    "Discard",
    "DuplicateDefinitionError",
    "Enqueued",
    "HandleError",
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
    "SchemaError",
    "Snooze",
    "SqlaneError",
    "StalledError",
    "UnknownNameError",
    "Worker",
    "WorkerError",
]
