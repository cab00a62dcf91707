"""The front door: definitions, enqueue on any of the four handles, inspection."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar

from sqlalchemy import Connection, MetaData

from sqlane_sa import store
from sqlane_sa.handles import connection_of, run_on
from sqlane_sa.schema import Tables
from sqlane_sa.values.definition import Definition
from sqlane_sa.values.duration import seconds, to_ms
from sqlane_sa.values.errors import (
    DefinitionError,
    DuplicateDefinitionError,
    InvalidJobError,
    UnknownNameError,
    shown,
)
from sqlane_sa.values.job import Enqueued, FailedJob, Job, NameStats, NewJob
from sqlane_sa.values.payload import encode
from sqlane_sa.values.text import ID_CHARS, check_keys, check_text

P = ParamSpec("P")
R = TypeVar("R")

SECONDS = float | timedelta

_FIRST, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Of `run_at`. Outside of them no driver is sure to read a time back in every time zone, and no worker the job."""


class Queue:
    """One set of tables (prefix, schema) and the definitions registered on it.

    Raises `DefinitionError` when prefix and schema cannot make identifiers of at most 63 bytes. A Queue touches no
    database by itself and may be shared by threads.
    """

    def __init__(self, prefix: str = "sqlane_", schema: str | None = None) -> None:
        self.tables = Tables(prefix, schema)
        self.definitions: dict[str, Definition] = {}

    @property
    def metadata(self) -> MetaData:
        """The queue's tables, for Alembic's target_metadata. The tables are made by migrations, never from here."""
        return self.tables.metadata

    def __repr__(self) -> str:
        return f"Queue(prefix={self.tables.prefix!r}, schema={self.tables.schema!r})"

    def job(self, name: str | None = None, **options: Any) -> Callable[[Callable[P, R]], JobHandle[P, R]]:
        """Decorate a handler: `def` or `async def`, of (payload) or (payload, ctx).

        `name` defaults to the function's. Options: max_attempts=5, backoff=Backoff(), timeout=None (seconds),
        priority=0 (lower runs first), mutex_keys=None (keys, or a function of the payload), failure_job=None (a name),
        max_stalls=3, completed_retention=86400 and failed_retention=1209600 (seconds, None: kept for ever),
        transactional=False. Raises `DefinitionError`; the second definition of a name is one.
        """
        if callable(name):
            raise DefinitionError("queue.job is called: write @queue.job()", option="name", value=name)

        def decorate(handler: Callable[P, R]) -> JobHandle[P, R]:
            if handler is None:  # what a decorator below this one returned
                raise DefinitionError("handler=None cannot be called; without one use queue.define", option="handler")
            definition = Definition(name=_name_of(handler) if name is None else name, handler=handler, **options)
            return JobHandle(self, self._register(definition), handler)

        return decorate

    def define(self, name: str, **options: Any) -> JobHandle[..., Any]:
        """Define a name without a handler, for processes that only enqueue. Options as for `job`."""
        return JobHandle(self, self._register(Definition(name=name, **options)), None)

    def _register(self, definition: Definition) -> Definition:
        if definition.name in self.definitions:
            raise DuplicateDefinitionError(definition.name)
        self.definitions[definition.name] = definition
        return definition

    def definition(self, name: str) -> Definition:
        """The definition of a name. Raises `UnknownNameError`."""
        try:
            return self.definitions[name]
        except (KeyError, TypeError):
            raise UnknownNameError(name, list(self.definitions)) from None

    def new(
        self,
        name: str,
        payload: Any = None,
        *,
        delay: SECONDS | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        mutex_keys: Iterable[str] | None = None,
        max_attempts: int | None = None,
        id: str | None = None,
    ) -> NewJob:
        """A checked job to be enqueued later; the payload is encoded now.

        `delay` in seconds and an aware `run_at` exclude each other; priority, mutex_keys and max_attempts come from
        the definition unless given (an empty list: no keys). Raises `UnknownNameError`, `InvalidJobError`,
        `PayloadError`, each naming the place.
        """
        definition = self.definition(name)
        text = encode(payload)
        keys = definition.keys_for(payload) if mutex_keys is None else check_keys(mutex_keys, "mutex_keys")
        return NewJob(
            id=None if id is None else check_text(id, "id", max_chars=ID_CHARS, what="an id"),
            name=definition.name,
            payload=text,
            priority=definition.priority if priority is None else _integer(priority, "priority", -32768, 32767),
            run_at=_run_at(run_at, delay),
            delay_ms=0 if delay is None else to_ms(seconds(delay, "delay", error=_invalid)),
            mutex_keys=keys,
            max_attempts=(
                definition.max_attempts if max_attempts is None else _integer(max_attempts, "max_attempts", 1, 100_000)
            ),
            max_stalls=definition.max_stalls,
            failure_job=definition.failure_job,
            completed_retention_ms=_retention_ms(definition.completed_retention),
            failed_retention_ms=_retention_ms(definition.failed_retention),
        )

    def enqueue(self, on: Any, name: str, payload: Any = None, **options: Any) -> Enqueued:
        """Write one job in the transaction of `on`, a Session, scoped_session or Connection.

        Options as for `new`. Flushes nothing and opens no savepoint. Given an `id` that exists already, nothing is
        written and `created` is False. Raises what `new` raises before any SQL is sent, `HandleError` and
        `AutocommitError`.
        """
        return self._insert(on, [self.new(name, payload, **options)], "enqueue")[0]

    def enqueue_many(self, on: Any, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Write any number of jobs in the transaction of `on`; one `Enqueued` each, in input order.

        All are checked before any SQL is sent, and an error names the place (`jobs[400]`).
        """
        return self._insert(on, self._checked(jobs), "enqueue_many")

    async def aenqueue(self, on: Any, name: str, payload: Any = None, **options: Any) -> Enqueued:
        """`enqueue` in the transaction of an AsyncSession or AsyncConnection."""
        job = self.new(name, payload, **options)
        return (await run_on(on, "enqueue", lambda sync: self._insert(sync, [job], "enqueue")))[0]

    async def aenqueue_many(self, on: Any, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """`enqueue_many` in the transaction of an AsyncSession or AsyncConnection."""
        checked = self._checked(jobs)
        return await run_on(on, "enqueue_many", lambda sync: self._insert(sync, checked, "enqueue_many"))

    def get(self, conn: Connection, id: str) -> Job | None:
        """The job with this id as the connection sees it, or None."""
        return store.get(conn, self.tables, id=id)

    def stats(self, conn: Connection) -> dict[str, NameStats]:
        """Name to its counts and the age of its oldest due job in ms; reads no completed rows."""
        return store.stats(conn, self.tables)

    def build_failure_job(self, failed: FailedJob) -> NewJob:
        """The job that reacts to a failed one.

        Its payload: id, name, payload, attempt, max_attempts and error of the failed job. A name that this process
        does not define gets the default options: another process may serve it.
        """
        payload = {
            "id": failed.id,
            "name": failed.name,
            "payload": failed.payload,
            "attempt": failed.attempt,
            "max_attempts": failed.max_attempts,
            "error": failed.error,
        }
        if failed.failure_job in self.definitions:
            return self.new(failed.failure_job, payload)
        stranger = Queue(self.tables.prefix, self.tables.schema)
        stranger.define(failed.failure_job)
        return stranger.new(failed.failure_job, payload)

    def _checked(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        checked: list[NewJob] = []
        iterator = iter(jobs)
        while True:
            place = f"jobs[{len(checked)}]"
            try:
                job = next(iterator)
            except StopIteration:
                return checked
            except InvalidJobError as error:
                raise error.at(place) from error
            if not isinstance(job, NewJob):
                raise InvalidJobError(f"is {type(job).__name__}; make it with queue.new(...)", place=place, value=job)
            checked.append(job)

    def _insert(self, on: object, jobs: list[NewJob], method: str) -> list[Enqueued]:
        return store.insert_jobs(connection_of(on, self.tables, method), self.tables, jobs=jobs)


class JobHandle(Generic[P, R]):
    """A defined job: call it as the function it was, or enqueue it."""

    def __init__(self, queue: Queue, definition: Definition, handler: Callable[P, R] | None) -> None:
        self.queue = queue
        self.definition = definition
        self.name = definition.name
        self._handler = handler
        if handler is not None:
            # Without the handler's own attributes: those of an object with a `__call__` may be a `name` or a `queue`.
            functools.update_wrapper(self, handler, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._handler is None:
            raise DefinitionError(
                f"{self.name!r} was defined without a handler in this process; enqueue it, or define it with queue.job",
                option="name",
                value=self.name,
            )
        return self._handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"

    def new(self, payload: Any = None, **options: Any) -> NewJob:
        """`queue.new` of this name."""
        return self.queue.new(self.name, payload, **options)

    def enqueue(self, on: Any, payload: Any = None, **options: Any) -> Enqueued:
        """`queue.enqueue` of this name."""
        return self.queue.enqueue(on, self.name, payload, **options)

    async def aenqueue(self, on: Any, payload: Any = None, **options: Any) -> Enqueued:
        """`queue.aenqueue` of this name."""
        return await self.queue.aenqueue(on, self.name, payload, **options)


def _name_of(handler: object) -> str:
    try:
        return handler.__name__  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        message = (
            f'{shown(handler)} has no __name__ to take; give the job a name, for example @queue.job("mail.welcome")'
        )
        raise DefinitionError(message, option="name", value=handler) from None


def _run_at(run_at: object, delay: object) -> datetime | None:
    if run_at is None:
        return None
    if delay is not None:
        raise InvalidJobError("run_at and delay exclude each other; give one of them", place="run_at", value=run_at)
    if not isinstance(run_at, datetime):
        raise InvalidJobError(f"is {type(run_at).__name__}; give an aware datetime", place="run_at", value=run_at)
    if run_at.utcoffset() is None:
        raise InvalidJobError(
            f"{run_at!r} is naive: it names no instant; give an aware datetime, for example datetime.now(UTC)",
            place="run_at",
            value=run_at,
        )
    if not _FIRST <= run_at < _END:
        raise InvalidJobError(
            f"{run_at!r} is not in the years 1970 to 9998 of UTC; for a job that is due now leave it out",
            place="run_at",
            value=run_at,
        )
    return run_at


def _integer(value: object, place: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidJobError(f"{value!r} is not an integer from {least} to {most}", place=place, value=value)
    return value


def _invalid(message: str, option: str, value: object) -> InvalidJobError:
    return InvalidJobError(message, place=option, value=value)


def _retention_ms(retention: float | None) -> int | None:
    return None if retention is None else to_ms(retention)
