"""A definition: the options of a name and, in a worker, its handler. All is checked when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from sqlane_sa.values.backoff import DEFAULT_BACKOFF
from sqlane_sa.values.callables import accepts, described, is_async, is_generator, is_unbound_method, takes_context
from sqlane_sa.values.checks import MAX_COUNT, MAX_PRIORITY, MIN_PRIORITY
from sqlane_sa.values.duration import definition_error, optional_seconds, seconds, to_ms
from sqlane_sa.values.errors import DefinitionError, InvalidJobError, shown
from sqlane_sa.values.options import Keys
from sqlane_sa.values.text import NAME_CHARS, check_keys, check_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The options of one name. Durations are seconds, or timedelta when it is made; a retention of None keeps for ever.

    `failure_job` is a name, or given as anything with a `name`, such as the handle of another job.
    Raises `DefinitionError` that names the option for whatever it cannot have.
    """

    name: str
    handler: Callable[..., Any] | None = None
    max_attempts: int = 5
    backoff: Callable[[int], object] = DEFAULT_BACKOFF
    timeout: float | None = None
    priority: int = 0
    mutex_keys: Callable[[Any], Keys] | tuple[str, ...] | None = None
    failure_job: str | None = None
    max_stalls: int = 3
    completed_retention: float | None = 86400.0
    failed_retention: float | None = 14 * 86400.0
    transactional: bool = False
    is_async: bool = field(init=False, repr=False, compare=False, default=False)
    """Whether the handler is an `async def`; found once, for looking at a signature costs more than running a job."""
    wants_context: bool = field(init=False, repr=False, compare=False, default=False)
    """Whether the handler takes the context after the payload."""
    completed_retention_ms: int | None = field(init=False, repr=False, compare=False, default=None)
    failed_retention_ms: int | None = field(init=False, repr=False, compare=False, default=None)

    @classmethod
    def build(cls, name: str, handler: Callable[..., Any] | None = None, **options: Any) -> Self:
        """A definition from options as a user writes them: timedelta for seconds, a handle as `failure_job`."""
        return cls(name=name, handler=handler, **options)

    def __post_init__(self) -> None:
        self._set("name", _name(self.name, "name"))
        self._set("max_attempts", _integer(self.max_attempts, "max_attempts", 1, MAX_COUNT))
        self._set("max_stalls", _integer(self.max_stalls, "max_stalls", 0, MAX_COUNT))
        self._set("priority", _integer(self.priority, "priority", MIN_PRIORITY, MAX_PRIORITY))
        self._set("timeout", _timeout(self.timeout))
        for option in ("completed_retention", "failed_retention"):
            kept = optional_seconds(getattr(self, option), option)
            self._set(option, kept)
            self._set(option + "_ms", None if kept is None else to_ms(kept))
        self._set("failure_job", _failure_job(self.failure_job, self.name))
        self._set("mutex_keys", _mutex_keys(self.mutex_keys))
        _check_backoff(self.backoff)
        _check_handler(self.handler, self.name)
        _check_transactional(self.transactional, self.handler, self.name)
        self._set("is_async", self.handler is not None and is_async(self.handler))
        self._set("wants_context", self.handler is not None and takes_context(self.handler))

    def keys_for(self, payload: Any) -> tuple[str, ...] | None:
        """The mutex keys of a job with this payload, sorted; None for none.

        Raises `InvalidJobError` at "mutex_keys" for keys that cannot be, and from whatever the user's function raises.
        """
        if not callable(self.mutex_keys):
            return self.mutex_keys
        try:
            return check_keys(self.mutex_keys(payload), "mutex_keys")
        except InvalidJobError:
            raise
        except Exception as error:
            message = f"the function of {shown(self.name)} raised {shown(error)} for this payload"
            raise InvalidJobError(message, place="mutex_keys") from error

    def _set(self, option: str, value: object) -> None:
        object.__setattr__(self, option, value)


def _wrong(option: str, value: object, what: str) -> DefinitionError:
    return DefinitionError(f"{option}={described(value)} {what}", option=option, value=value)


def _integer(value: object, option: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _wrong(option, value, f"must be an int from {low} to {high}")
    return int(value)


def _name(value: object, option: str) -> str:
    try:
        return check_text(value, option, max_chars=NAME_CHARS, what="a job name")
    except InvalidJobError as error:
        raise DefinitionError(str(error), option=option, value=value) from None


def _timeout(value: float | timedelta | None) -> float | None:
    return None if value is None else seconds(value, "timeout", exclusive=True, error=_timeout_error)


def _timeout_error(message: str, option: str, value: object) -> Exception:
    return definition_error(f"{message}, or None for no timeout", option, value)


def _failure_job(value: object, own_name: str) -> str | None:
    if value is None:
        return None
    name = _name(value if isinstance(value, str) else getattr(value, "name", value), "failure_job")
    if name == own_name:
        raise _wrong("failure_job", name, "is the job itself, which could fail for ever; name another job")
    return name


def _mutex_keys(value: Any) -> Callable[[Any], Keys] | tuple[str, ...] | None:
    if callable(value):
        if is_async(value) or accepts(value, 1) is False:
            raise _wrong("mutex_keys", value, "must be a plain function of the payload")
        return value  # type: ignore[no-any-return]
    try:
        return check_keys(value, "mutex_keys")
    except InvalidJobError as error:
        raise DefinitionError(str(error), option="mutex_keys", value=value) from None


def _check_backoff(value: object) -> None:
    if not callable(value) or is_async(value) or accepts(value, 1) is False:
        raise _wrong("backoff", value, "must be a Backoff or a plain function of the attempt's number")


def _check_handler(handler: object, name: str) -> None:
    if handler is None:
        return
    if not callable(handler):
        raise _wrong("handler", handler, f"of {shown(name)} cannot be called; use a def or async def function")
    if is_unbound_method(handler):
        what = "is a method; define a function, or give queue.job a bound method"
        raise _wrong("handler", handler, f"of {shown(name)} {what}")
    if is_generator(handler):
        what = "is a generator, which would never run; use return instead of yield"
        raise _wrong("handler", handler, f"of {shown(name)} {what}")
    if accepts(handler, 1) is False and accepts(handler, 2) is False:
        what = "must take (payload) or (payload, ctx), and nothing else without a default"
        raise _wrong("handler", handler, f"of {shown(name)} {what}")


def _check_transactional(value: object, handler: Callable[..., Any] | None, name: str) -> None:
    if not isinstance(value, bool):
        raise _wrong("transactional", value, "must be True or False")
    if value and handler is not None and is_async(handler):
        what = f"needs a def handler, and that of {shown(name)}, {described(handler)}, is async def"
        raise _wrong("transactional", value, f"{what}: its transaction is a plain Connection's")
