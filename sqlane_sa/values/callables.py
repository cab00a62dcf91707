"""What kind of function a callable is: through partials, and for objects with a `__call__`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


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


def _layers(function: Any) -> list[Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return [function]
    return [function, type(function).__call__]
