"""What kind of function a callable is: through partials, and for objects with a `__call__`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from sqlane_sa.values.errors import shown


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine."""
    return any(map(inspect.iscoroutinefunction, _layers(function)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a generator, plain or async, and runs nothing."""
    return any(inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer) for layer in _layers(function))


def accepts(function: Callable[..., Any], count: int) -> bool | None:
    """Whether it can be called with `count` positional arguments alone; None when nobody knows (some builtins).

    None counts as one argument: that is how such a function is called.
    """
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:
        return None
    except TypeError:
        return False
    return True


def is_unbound_method(function: Callable[..., Any]) -> bool:
    """Whether it was taken from the body of a class: its `self` or `cls` would be the payload."""
    try:
        first = next(iter(inspect.signature(function).parameters), None)
    except ValueError:
        return False
    around = str(getattr(_unwrapped(function), "__qualname__", "")).rpartition(".")[0]
    return first in ("self", "cls") and around != "" and not around.endswith("<locals>")


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the context is to be passed after the payload: to a second argument without a default, to one named
    `ctx` or `context`, and to `*args`. Any other default is the function's own option."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) >= 2:
        return positional[1].default is positional[1].empty or positional[1].name in ("ctx", "context")
    return any(p.kind is p.VAR_POSITIONAL for p in parameters)


def described(function: object) -> str:
    """A function for messages: its module, its name and its line, as far as it has them; of anything else the repr."""
    function = _unwrapped(function)
    if not inspect.isroutine(function):
        return shown(function)
    code = getattr(function, "__code__", None)
    line = "" if code is None else f" (line {code.co_firstlineno})"
    return f"{function.__module__}.{function.__qualname__}{line}"


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _layers(function: Any) -> list[Any]:
    function = _unwrapped(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return [function]
    return [function, type(function).__call__]
