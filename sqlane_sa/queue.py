"""The front door: definitions, enqueue on any of the four handles, inspection."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

from sqlalchemy import MetaData
from sqlalchemy.exc import DBAPIError

from sqlane_sa import store
from sqlane_sa.absent import explain_absent
from sqlane_sa.handles import connection_of, reading_connection, refuse_wrong, refuse_wrong_async, run_on
from sqlane_sa.schema import Tables
from sqlane_sa.values.checks import (
    check_delay,
    check_id,
    check_max_attempts,
    check_priority,
    check_run_at,
    checked,
)
from sqlane_sa.values.definition import Definition
from sqlane_sa.values.errors import (
    DefinitionError,
    DuplicateDefinitionError,
    InvalidJobError,
    UnknownNameError,
    shown,
)
from sqlane_sa.values.health import Health
from sqlane_sa.values.job import Enqueued, FailedJob, Job, NameStats, NewJob, checked_job
from sqlane_sa.values.options import DefinitionOptions, JobOptions, Seconds, check_options, refuse_unknown
from sqlane_sa.values.payload import encode
from sqlane_sa.values.reaction import reaction_payload
from sqlane_sa.values.text import check_keys

P = ParamSpec("P")
R = TypeVar("R")


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

    def job(
        self, name: str | None = None, **options: Unpack[DefinitionOptions]
    ) -> Callable[[Callable[P, R]], JobHandle[P, R]]:
        """Decorate a handler: `def` or `async def`, of (payload) or (payload, ctx).

        `name` defaults to the function's. Options: max_attempts=5, backoff=Backoff(), timeout=None (seconds),
        priority=0 (lower runs first), mutex_keys=None (keys, or a function of the payload), failure_job=None (a name),
        max_stalls=3, completed_retention=86400 and failed_retention=1209600 (seconds, None: kept for ever),
        transactional=False. Raises `DefinitionError`; the second definition of a name is one.
        """
        check_options(options)
        if callable(name):
            raise DefinitionError("queue.job is called: write @queue.job()", option="name", value=name)

        def decorate(handler: Callable[P, R]) -> JobHandle[P, R]:
            if handler is None:  # what a decorator below this one returned
                raise DefinitionError("handler=None cannot be called; without one use queue.define", option="handler")
            definition = Definition.build(_name_of(handler) if name is None else name, handler, **options)
            return JobHandle(self, self._register(definition), handler)

        return decorate

    def define(self, name: str, **options: Unpack[DefinitionOptions]) -> JobHandle[..., Any]:
        """Define a name without a handler, for processes that only enqueue. Options as for `job`."""
        check_options(options)
        return JobHandle(self, self._register(Definition.build(name, **options)), None)

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
        delay: Seconds | None = None,
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
        return checked_job(
            None if id is None else check_id(id),
            definition.name,
            text,
            definition.priority if priority is None else check_priority(priority),
            None if run_at is None else check_run_at(run_at, delay),
            0 if delay is None else check_delay(delay),
            keys,
            definition.max_attempts if max_attempts is None else check_max_attempts(max_attempts),
            definition.max_stalls,
            definition.failure_job,
            definition.completed_retention_ms,
            definition.failed_retention_ms,
        )

    def enqueue(self, on: Any, name: str, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Write one job in the transaction of `on`, a Session, scoped_session or Connection.

        Options as for `new`. Flushes nothing and opens no savepoint. Given an `id` that exists already, nothing is
        written and `created` is False. Raises what `new` raises before any SQL is sent, `HandleError` and
        `AutocommitError`.
        """
        return self._enqueue(on, name, payload, options, "queue")

    def enqueue_many(self, on: Any, jobs: Iterable[NewJob], *, copy: bool = False) -> list[Enqueued]:
        """Write any number of jobs in the transaction of `on`; one `Enqueued` each, in input order.

        All are checked before any SQL is sent, copies made by `dataclasses.replace` too, and an error names the place
        (`jobs[400]`).

        `copy=True` sends them by COPY, for imports of very many: on the driver psycopg alone (else `HandleError`), and
        for jobs without a given `id` (else `InvalidJobError`), because COPY cannot pass over one that exists.
        """
        return self._insert(on, self._checked(jobs), "enqueue_many", copy)

    async def aenqueue(self, on: Any, name: str, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """`enqueue` in the transaction of an AsyncSession or AsyncConnection."""
        return await self._aenqueue(on, name, payload, options, "queue")

    async def aenqueue_many(self, on: Any, jobs: Iterable[NewJob], *, copy: bool = False) -> list[Enqueued]:
        """`enqueue_many` in the transaction of an AsyncSession or AsyncConnection."""
        checked = self._checked(jobs)
        return await run_on(on, "enqueue_many", lambda sync: self._insert(sync, checked, "enqueue_many", copy))

    def get(self, conn: Any, id: str) -> Job | None:
        """The job with this id as the Connection (or Session) sees it, or None.

        Raises `InvalidJobError` for what can be no id, and `HandleError`.
        """
        return store.get(reading_connection(conn, self.tables, "get"), self.tables, id=check_id(id))

    def stats(self, conn: Any) -> dict[str, NameStats]:
        """Name to its counts and the age of its oldest due job in ms; reads no completed rows. Raises `HandleError`."""
        return store.stats(reading_connection(conn, self.tables, "stats"), self.tables)

    def health(self, conn: Any) -> Health:
        """What slows the queue down without showing in its jobs, from statistics alone. Raises `HandleError`."""
        return store.health(reading_connection(conn, self.tables, "health"), self.tables)

    def build_failure_job(self, failed: FailedJob) -> NewJob:
        """The job that reacts to a failed one.

        Its payload: id, name, payload, attempt, max_attempts and error of the failed job. A name that this process
        does not define gets the default options: another process may serve it. Raises `InvalidJobError` for the 11th in
        a row: jobs that name each other as failure job would go on for ever.
        """
        payload = reaction_payload(failed)
        if failed.failure_job in self.definitions:
            return self.new(failed.failure_job, payload)
        stranger = Queue(self.tables.prefix, self.tables.schema)
        stranger.define(failed.failure_job)
        return stranger.new(failed.failure_job, payload)

    def _enqueue(self, on: object, name: str, payload: Any, options: JobOptions, owner: object) -> Enqueued:
        """`owner` is what messages say has the method that was called: "queue", or a handle."""
        try:
            job = self.new(name, payload, **options)
        except Exception:
            refuse_wrong(
                on, "enqueue", owner
            )  # a forgotten session, and all that was given is taken for something else
            refuse_unknown(options, "enqueue")
            raise
        return self._insert(on, [job], "enqueue", owner=owner)[0]

    async def _aenqueue(self, on: object, name: str, payload: Any, options: JobOptions, owner: object) -> Enqueued:
        try:
            job = self.new(name, payload, **options)
        except Exception:
            refuse_wrong_async(on, "enqueue", owner)
            refuse_unknown(options, "aenqueue")
            raise
        return (await run_on(on, "enqueue", lambda sync: self._insert(sync, [job], "enqueue"), owner))[0]

    def _checked(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        good: list[NewJob] = []
        iterator = _iterator(jobs)
        known = self.definitions
        while True:
            try:
                for job in iterator:
                    if type(job) is not NewJob or not job.is_checked or job.name not in known:
                        break
                    good.append(job)
                else:
                    return good
            except (InvalidJobError, UnknownNameError) as error:  # from a generator's queue.new(...)
                raise error.at(f"jobs[{len(good)}]") from error
            good.append(self._checked_one(job, f"jobs[{len(good)}]"))

    def _checked_one(self, job: object, place: str) -> NewJob:
        if not isinstance(job, NewJob):
            raise InvalidJobError(f"{shown(job)} is no NewJob; make it with queue.new(...)", place=place, value=job)
        try:
            job = checked(job)
            self.definition(job.name)
        except (InvalidJobError, UnknownNameError) as error:
            raise error.at(place) from error
        return job

    def _insert(
        self, on: object, jobs: list[NewJob], method: str, copy: bool = False, owner: object = "queue"
    ) -> list[Enqueued]:
        conn = connection_of(on, self.tables, method, owner)
        try:
            if copy:
                return [Enqueued(id_, True) for id_ in store.copy_jobs(conn, self.tables, jobs=jobs)]
            return store.insert_jobs(conn, self.tables, jobs=jobs)
        except DBAPIError as error:
            explain_absent(error, conn, self.tables)
            raise


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

    def new(self, payload: Any = None, **options: Unpack[JobOptions]) -> NewJob:
        """`queue.new` of this name."""
        return self.queue.new(self.name, payload, **options)

    def enqueue(self, on: Any, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """`queue.enqueue` of this name."""
        return self.queue._enqueue(on, self.name, payload, options, self)

    async def aenqueue(self, on: Any, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """`queue.aenqueue` of this name."""
        return await self.queue._aenqueue(on, self.name, payload, options, self)


def _name_of(handler: object) -> str:
    try:
        return handler.__name__  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        message = (
            f'{shown(handler)} has no __name__ to take; give the job a name, for example @queue.job("mail.welcome")'
        )
        raise DefinitionError(message, option="name", value=handler) from None


def _iterator(jobs: Iterable[NewJob]) -> Iterator[NewJob]:
    try:
        return iter(jobs)
    except TypeError as error:
        message = f"{shown(jobs)} is no list of jobs; give an iterable of queue.new(...)"
        raise InvalidJobError(message, place="jobs", value=jobs) from error
