import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from sqlane_sa.values.backoff import Backoff
from sqlane_sa.values.definition import Definition
from sqlane_sa.values.errors import DefinitionError, InvalidJobError


def one(payload: Any) -> None: ...
def two(payload: Any, ctx: Any) -> None: ...
def both(payload: Any, ctx: Any = None) -> None: ...
def anything(*args: Any) -> None: ...
def configured(host: str, payload: Any, ctx: Any) -> None: ...
def none() -> None: ...
def three(payload: Any, ctx: Any, more: Any) -> None: ...
def keyword(payload: Any, *, ctx: Any) -> None: ...
async def coroutine(payload: Any) -> None: ...
async def coroutine_two(payload: Any, ctx: Any) -> None: ...


def generator(payload: Any) -> Iterator[int]:
    yield 1


async def async_generator(payload: Any) -> AsyncIterator[int]:
    yield 1


class Handler:
    def __call__(self, payload: Any) -> None: ...
    def method(self, payload: Any, ctx: Any) -> None: ...
    def method_of_none(self) -> None: ...
    async def async_method(self, payload: Any) -> None: ...
    @classmethod
    def of_class(cls, payload: Any) -> None: ...
    @staticmethod
    def static(payload: Any) -> None: ...


class AsyncHandler:
    async def __call__(self, payload: Any, ctx: Any) -> None: ...


class GeneratorHandler:
    def __call__(self, payload: Any) -> Iterator[int]:
        yield 1


class Priority(IntEnum):
    HIGH = -5


def test_defaults() -> None:
    definition = Definition.build("mail")
    assert definition == Definition(name="mail")
    assert (definition.max_attempts, definition.max_stalls, definition.priority) == (5, 3, 0)
    assert (definition.completed_retention, definition.failed_retention) == (86400, 14 * 86400)
    assert definition.backoff == Backoff()
    assert not definition.is_async
    assert not definition.wants_context


def test_options_are_normalised() -> None:
    definition = Definition.build(
        "mail",
        one,
        timeout=timedelta(minutes=1),
        completed_retention=timedelta(0),
        failed_retention=None,
        failure_job=SimpleNamespace(name="alert"),
        mutex_keys=["b", "a", "a"],
        priority=Priority.HIGH,
    )
    assert definition.timeout == 60
    assert definition.completed_retention == 0
    assert definition.failed_retention is None
    assert definition.failure_job == "alert"
    assert definition.mutex_keys == ("a", "b")
    assert type(definition.priority) is int
    assert Definition.build("mail", mutex_keys=[]).mutex_keys is None


@pytest.mark.parametrize(
    ("handler", "is_async", "wants_context"),
    [
        (one, False, False),
        (two, False, True),
        (both, False, True),
        (anything, False, True),
        (functools.partial(configured, "host"), False, True),
        (coroutine, True, False),
        (coroutine_two, True, True),
        (functools.partial(coroutine), True, False),
        (Handler(), False, False),
        (Handler().method, False, True),
        (Handler().async_method, True, False),
        (Handler().of_class, False, False),
        (Handler.static, False, False),
        (functools.partial(Handler.method, Handler()), False, True),
        (lambda self: None, False, False),
        (AsyncHandler(), True, True),
        (functools.partial(AsyncHandler()), True, True),
        (lambda payload: None, False, False),
        (lambda payload, retries=3: None, False, False),
        (lambda payload, ctx=None: None, False, True),
        (max, False, False),  # a builtin without a signature
        (print, False, True),
    ],
)
def test_handlers(handler: Callable[..., Any], is_async: bool, wants_context: bool) -> None:
    definition = Definition.build("mail", handler)
    assert definition.is_async is is_async
    assert definition.wants_context is wants_context


@pytest.mark.parametrize(
    "handler",
    [
        none,
        three,
        keyword,
        generator,
        async_generator,
        functools.partial(generator),
        GeneratorHandler(),
        "mail.send",
        3,
    ],
)
def test_handlers_that_cannot_be_called_with_a_payload(handler: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^handler=") as caught:
        Definition.build("mail", handler)
    assert caught.value.option == "handler"


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("max_attempts", [0, -1, True, 1.0, "5", None, 100_001]),
        ("max_stalls", [-1, False, 2.5, None, 100_001]),
        ("priority", [-32769, 32768, True, "high", 1.5, None]),
        ("timeout", [0, -1, 0.0, True, "30", float("nan"), float("inf"), timedelta(0)]),
        ("completed_retention", [-1, True, "day", float("inf"), 10**30]),
        ("failed_retention", [-0.5, False, timedelta(-1)]),
        ("failure_job", ["", "mail", "a\0", 3, SimpleNamespace(name=None), SimpleNamespace(name="mail"), "x" * 256]),
        ("mutex_keys", [3, b"a", {"a": 1}, [""], ["a", 3], "", ["\ud800"], none, coroutine]),
        ("backoff", [5, None, "fast", none, coroutine]),
        ("transactional", [1, None, "yes"]),
        ("name", ["", None, 3, "a\0b", "\ud800", "x" * 256, b"mail"]),
    ],
)
def test_wrong_options_name_themselves(option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(DefinitionError, match=f"^{option}") as caught:
            Definition(**{"name": "mail", option: value})
        assert caught.value.option == option
        assert caught.value.value == value or value != value or option == "failure_job"


def test_the_timeout_error_says_how_to_have_none() -> None:
    with pytest.raises(DefinitionError, match="or None for no timeout"):
        Definition(name="mail", timeout=0)


def test_a_transaction_needs_a_plain_function() -> None:
    assert Definition.build("mail", two, transactional=True).transactional
    with pytest.raises(DefinitionError) as caught:
        Definition.build("mail", coroutine_two, transactional=True)
    assert str(caught.value) == (
        f"transactional=True needs a def handler, and that of 'mail', {__name__}.coroutine_two "
        f"(line {coroutine_two.__code__.co_firstlineno}), is async def: its transaction is a plain Connection's"
    )


@pytest.mark.parametrize("handler", [none, generator, functools.partial(none), Handler().method_of_none])
def test_a_handler_that_cannot_be_is_named_with_its_place(handler: Any) -> None:
    function = handler.func if isinstance(handler, functools.partial) else handler
    where = f"handler={__name__}.{function.__qualname__} (line {function.__code__.co_firstlineno})"
    with pytest.raises(DefinitionError, match=f"^{re.escape(where)} of 'mail' "):
        Definition.build("mail", handler)


@pytest.mark.parametrize(
    "handler",
    [Handler.method, Handler.async_method, Handler.of_class.__func__, functools.partial(Handler.method, ctx=None)],  # type: ignore[attr-defined]
)
def test_a_method_without_its_object_is_no_handler(handler: Any) -> None:
    """As a decorator in the body of a class gets it: it would be called with the payload as `self`."""
    with pytest.raises(
        DefinitionError, match=r" of 'mail' is a method; define a function, or give queue\.job a bound method$"
    ):
        Definition.build("mail", handler)


def test_a_function_in_a_method_is_one() -> None:
    class Local:
        def method(self, payload: Any) -> None: ...

        @staticmethod
        def function() -> Callable[..., Any]:
            def inner(self: Any) -> None: ...

            return inner

    Definition.build("mail", Local.function())
    with pytest.raises(DefinitionError, match="is a method"):
        Definition.build("mail", Local.method)


def test_keys_of_a_payload() -> None:
    assert Definition.build("mail").keys_for({}) is None
    assert Definition.build("mail", mutex_keys="all").keys_for({}) == ("all",)
    by_user = Definition.build("mail", mutex_keys=lambda p: [f"user:{u}" for u in p["users"]])
    assert by_user.keys_for({"users": [2, 1, 2]}) == ("user:1", "user:2")
    assert by_user.keys_for({"users": []}) is None


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (lambda p: p["missing"], "mutex_keys"),
        (lambda p: (p["missing"] for _ in "a"), "mutex_keys"),
        (lambda p: 3, "mutex_keys"),
        (lambda p: ["a", None], "mutex_keys[1]"),
    ],
)
def test_keys_that_cannot_be_made(function: Any, place: str) -> None:
    with pytest.raises(InvalidJobError) as caught:
        Definition.build("mail", mutex_keys=function).keys_for({})
    assert caught.value.place == place
