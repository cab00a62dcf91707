"""Exceptions as JSON: what `last_error` holds. It is storable whatever the exception, and never large."""

from __future__ import annotations

import json
import re
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

MAX_TYPE_CHARS = 255
MAX_MESSAGE_CHARS = 10_000
MAX_TRACEBACK_CHARS = 30_000
MAX_FRAMES = 50
MAX_LINE_CHARS = 500
MAX_RELATED = 10
"""Causes of an exception and members of a group that its traceback tells of."""

_MAX_RELATED_CHARS = 1_000
_PACKAGE = __name__.partition(".")[0]
_INSIDE = (f"{_PACKAGE}.values.", f"{_PACKAGE}.worker.")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def describe_error(exc: BaseException, *, attempt: int | None = None, stack: str = "") -> dict[str, Any]:
    """`exc` as {"type", "message", "traceback"}, with "attempt" when given. Never raises.

    "type" is the qualified class name, without "builtins.", and such as "sqlane_sa.Discard" for one of this package;
    "message" has at most 10,000 characters, "traceback" the last 30,000. The traceback begins with the causes and ends
    with the frame that raised; the message is not in it. `stack`, a `stack_text`, is where an exception that was not
    raised has come from.
    """
    error = _error(_type_name(exc), _message(exc, MAX_MESSAGE_CHARS), _traceback(exc) + stack)
    if attempt is not None:
        error["attempt"] = attempt
    return error


def plain_error(type_name: str, message: str) -> dict[str, Any]:
    """The same shape for an error that was never raised: its traceback is empty."""
    return _error(type_name, message, "")


def error_dict(error: object) -> dict[str, Any] | None:
    """An error in the form that is kept: a mapping as it is, an exception described, a text in a plain one, or None."""
    if error is None or isinstance(error, Mapping):
        return None if error is None else dict(error)
    return describe_error(error) if isinstance(error, BaseException) else plain_error("Error", str(error))


def ascii_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """The same error with escapes for what not every database can hold: one whose encoding is not UTF8."""
    return {
        key: value.encode("ascii", "backslashreplace").decode() if isinstance(value, str) else value
        for key, value in error.items()
    }


def error_json(error: object) -> str | None:
    """`error_dict` as JSON text; None stays None, and becomes NULL."""
    kept = error_dict(error)
    return None if kept is None else json.dumps(kept)


def _error(type_name: str, message: str, text: str) -> dict[str, Any]:
    return {
        "type": _storable(type_name[:MAX_TYPE_CHARS]),
        "message": _storable(_capped(message, MAX_MESSAGE_CHARS)),
        "traceback": _storable(text[-MAX_TRACEBACK_CHARS:]),
    }


def _storable(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def _capped(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _type_name(exc: BaseException) -> str:
    """For what comes out of this package, the name by which it is imported: its files are nobody's business."""
    kind = type(exc)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    module = _PACKAGE if kind.__module__.startswith(_INSIDE) else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _message(exc: BaseException, limit: int) -> str:
    try:
        return _capped(str(exc), limit)
    except BaseException as broken:  # a user's __str__ may raise anything
        return f"(no message: str() of the exception raised {type(broken).__name__})"


def _traceback(exc: BaseException) -> str:
    """Causes first, as Python prints them; written here because the standard module copies every message whole."""
    try:
        parts = [_frames(exc.__traceback__)]
        for relation, other in _related(exc):
            headline = f"{_type_name(other)}: {_message(other, _MAX_RELATED_CHARS)}"
            parts.append(f"{_frames(other.__traceback__)}{headline}\n\n{relation}\n\n")
        return "".join(reversed(parts))
    except BaseException as broken:
        return f"(no traceback: building it raised {type(broken).__name__})"


def stack_text(frames: Iterable[FrameType]) -> str:
    """Frames, the outermost first, as a traceback shows them: without values."""
    return _frames_text((frame, frame.f_lineno) for frame in frames)


def _frames(tb: TracebackType | None) -> str:
    return "" if tb is None else _frames_text(traceback.walk_tb(tb))


def _frames_text(found: Iterable[tuple[FrameType, int]]) -> str:
    frames = deque(found, maxlen=MAX_FRAMES)
    if not frames:
        return ""
    lines = traceback.StackSummary.extract(iter(frames)).format()
    return "Traceback (most recent call last):\n" + "".join(_short_lines(lines))


def _short_lines(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from (f"{_capped(part, MAX_LINE_CHARS)}\n" for part in line.splitlines())


def _related(exc: BaseException) -> Iterator[tuple[str, BaseException]]:
    """What led to `exc`, nearest first: its cause, the members of a group. A chain of causes may be a ring."""
    seen = {id(exc)}
    waiting = _next(exc)
    while waiting and len(seen) <= MAX_RELATED:
        relation, other = waiting.pop()
        if id(other) not in seen:
            seen.add(id(other))
            yield relation, other
            waiting += _next(other)


def _next(exc: BaseException) -> list[tuple[str, BaseException]]:
    """With its relation to `exc`; the nearest is the last."""
    found: list[tuple[str, BaseException]] = []
    if exc.__cause__ is not None:
        found.append(("The above exception was the direct cause of the following exception:", exc.__cause__))
    elif exc.__context__ is not None and not exc.__suppress_context__:
        found.append(("During handling of the above exception, another exception occurred:", exc.__context__))
    if isinstance(exc, BaseExceptionGroup):
        found += (
            ("The above exception is a member of the group below:", e) for e in reversed(exc.exceptions[:MAX_RELATED])
        )
    return found
