"""Every error of the package: one root, facts as attributes, messages that name the value and the next step."""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any, Self

MAX_SHOWN_CHARS = 200

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_REPR.maxlevel = 2


def shown(value: object) -> str:
    """A `repr` for messages: short whatever the value, and it never raises."""
    try:
        text = _REPR.repr(value)
    except Exception:  # an integer of more than 4,300 digits, a broken __repr__
        return f"<{type(value).__name__}>"
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def _rebuild(cls: type[SqlaneError], args: tuple[object, ...], facts: dict[str, Any]) -> SqlaneError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


class SqlaneError(Exception):
    """The root of every error of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with `args` alone, which fails for constructors that take facts.
        return _rebuild, (type(self), self.args, self.__dict__)


class DefinitionError(SqlaneError, ValueError):
    """A definition, a queue or a worker was given an option it cannot have: `option`, `value`."""

    def __init__(self, message: str, *, option: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.option = option
        self.value = value


class DuplicateDefinitionError(DefinitionError):
    """A name was defined twice on one queue: `name`."""

    def __init__(self, name: str) -> None:
        message = f"{shown(name)} is already defined on this queue; use another name, or define it once and import it"
        super().__init__(message, option="name", value=name)
        self.name = name


class UnknownNameError(SqlaneError, LookupError):
    """A name that no definition of the queue has: `name`, `known`, and the `place` of a job in a bulk, or None."""

    def __init__(self, name: str, known: Collection[str], *, place: str | None = None) -> None:
        super().__init__(
            f"{f'{place}: ' if place else ''}no job is named {shown(name)} on this queue; {_suggestion(name, known)}"
            "define it with queue.job or queue.define, or import the module that does"
        )
        self.name = name
        self.known = tuple(known)
        self.place = place

    def at(self, place: str) -> Self:
        """The same error at a place, such as `jobs[400]`."""
        return type(self)(self.name, self.known, place=place)


def close_names(name: str, known: Collection[str], *, most: int = 1) -> list[str]:
    """What a name that is not known was probably meant to be, the closest first."""
    import difflib  # for messages alone

    return difflib.get_close_matches(name[:255], known, n=most)


def _suggestion(name: object, known: Collection[str]) -> str:
    hint = "" if isinstance(name, str) else "a name is a string (what queue.job returns has an enqueue of its own); "
    close = close_names(name, known, most=3) if isinstance(name, str) else []
    if close:
        return f"did you mean {' or '.join(map(shown, close))}? Otherwise "
    if known:
        some = sorted(known)[:5]
        more = f" and {len(known) - len(some)} more" if len(known) > len(some) else ""
        return f"{hint}it knows {', '.join(map(shown, some))}{more}; "
    return f"{hint}it knows no names yet; "


class InvalidJobError(SqlaneError, ValueError):
    """A job that cannot be stored, refused before any SQL was sent: `reason`, `place`, `value`."""

    def __init__(self, message: str, *, place: str, value: object = None) -> None:
        super().__init__(f"{place}: {message}")
        self.reason = message
        self.place = place
        self.value = value

    def at(self, prefix: str) -> Self:
        """The same error one level further out: `jobs[400]` before `run_at` gives `jobs[400].run_at`."""
        return type(self)(self.reason, place=f"{prefix}.{self.place}", value=self.value)


class PayloadError(InvalidJobError, TypeError):
    """A payload that cannot be stored as JSON, or stored text that cannot be read back."""


class HandleError(SqlaneError, TypeError):
    """The object given as `on` is no session or connection that the function can work with."""


class AutocommitError(SqlaneError):
    """An enqueue on an AUTOCOMMIT connection, where there is no transaction for the job to be part of."""


class StalledError(SqlaneError):
    """A job's lease ended without a result, its process died or blocked: `stalls`, `max_stalls`."""

    def __init__(self, stalls: int, max_stalls: int) -> None:
        super().__init__(
            f"the lease ended without a result (stall {stalls}, at most {max_stalls} allowed): "
            "the worker's process died, was cut off or was blocked"
        )
        self.stalls = stalls
        self.max_stalls = max_stalls


class JobTimeoutError(SqlaneError, TimeoutError):
    """A handler ran longer than its timeout in seconds: `timeout`."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"the handler ran longer than its timeout of {timeout:g} s")
        self.timeout = timeout


class AttemptsExhaustedError(SqlaneError):
    """A pending job had already used all its attempts: `attempts`, `max_attempts`."""

    def __init__(self, attempts: int, max_attempts: int) -> None:
        super().__init__(f"{attempts} of {max_attempts} attempts were already used; the handler was not called")
        self.attempts = attempts
        self.max_attempts = max_attempts


class HandlerExitError(SqlaneError):
    """A handler raised a BaseException that is no Exception, such as SystemExit: `original`, its class name."""

    def __init__(self, original: str) -> None:
        super().__init__(f"the handler raised {original}; it counts as a failed attempt and the worker goes on")
        self.original = original


class SchemaError(SqlaneError):
    """The tables in the database are not those this version needs: `current`, `head`."""

    def __init__(self, message: str, *, current: str | None, head: str) -> None:
        super().__init__(message)
        self.current = current
        self.head = head


class SchemaBehindError(SchemaError):
    """The database lacks revisions that this version of the package needs."""


class SchemaAheadError(SchemaError):
    """The database has a revision that this version of the package does not know."""


class SchemaBusyError(SchemaError):
    """A migration did not get a table that others use, and changed nothing."""


class WorkerError(SqlaneError):
    """A worker was used in a way it cannot serve, or one of its parts could not go on."""
