"""The payload codec: JSON text that PostgreSQL stores and Python reads back as the same value.

Everything the server would refuse (and so abort the caller's transaction) and everything JSON would change silently is
refused here, with the path of the first problem.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from enum import Enum
from typing import Any

from sqlane_sa.values.errors import PayloadError, shown
from sqlane_sa.values.text import has_surrogate

MAX_DEPTH = 200
MAX_BYTES = 16 * 1024 * 1024
MAX_DIGITS = 4300
"""Python refuses to parse longer integers, so the worker could not read them back."""

MAX_PATH = 10
"""Steps of a path shown in a message."""

_BIG = 10**MAX_DIGITS
_SMALL = 10**18
_PLAIN = frozenset((bool, type(None)))

_SHORT = 1000
"""Characters of a string, or entries of a dict, that are looked at twice where the first look was in vain."""

# The walk has found that there are no cycles, or stopped at the depth.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def _c_encode() -> Callable[[Any], str] | None:
    """The encoder of the standard library in C, made once: its own `encode` makes one for every payload."""
    make, quote = getattr(json.encoder, "c_make_encoder", None), getattr(json.encoder, "c_encode_basestring", None)
    try:
        parts = make(None, _encoder.default, quote, None, ":", ",", False, False, False)  # type: ignore[misc]
        assert "".join(parts({"é": ["\n", 1.5, None]}, 0)) == '{"é":["\\n",1.5,null]}'
    except Exception:  # another Python, which has none or another one
        return None
    return lambda payload: "".join(parts(payload, 0))


_encode = _c_encode() or _encoder.encode

_scan = json.JSONDecoder().raw_decode

_Items = Iterator[tuple[Any, Any]]


def encode(payload: object) -> str:
    """The payload as compact JSON text: dicts with str keys, lists and tuples (which come back as lists), str, int,
    finite float, bool and None.

    Raises `PayloadError` that names the place for anything else: other types, NUL characters and lone surrogates, NaN
    and infinity, nesting deeper than 200, integers of more than 4,300 digits, text of more than 16 MiB in UTF-8.
    """
    text = _quickly(payload)
    if text is not None:
        return text
    try:
        _Walk().check(payload)
        text = _encode(payload)
        size = len(text) if text.isascii() else len(text.encode())
    except PayloadError:
        raise
    except Exception as error:  # of a subclass with methods of its own, or of a payload another thread changes
        raise PayloadError(f"cannot be encoded as JSON ({_name(error)})", place="payload") from error
    if size > MAX_BYTES:
        raise _too_large()
    return text


def _quickly(payload: Any) -> str | None:
    """The text of what most payloads are, a small dict or one value in ASCII; None for all that needs a closer look."""
    try:
        if type(payload) is dict:
            if len(payload) > _SHORT:
                return None
            for key, item in payload.items():
                if type(key) is not str or not key.isascii() or not _is_simple(item):
                    return None
        elif not _is_simple(payload):
            return None
        text = _encode(payload)
    except Exception:  # NaN, a dict that another thread changes
        return None
    # ASCII text may still hold a NUL.
    return text if len(text) <= MAX_BYTES and "\\u0000" not in text else None


def _is_simple(item: Any) -> bool:
    kind = type(item)
    if kind is str:
        return item.isascii() and len(item) <= _SHORT
    return -_SMALL < item < _SMALL if kind is int else kind is float or kind in _PLAIN


def decode(text: str) -> Any:
    """The value of stored JSON text. Raises `PayloadError` for text that Python cannot read."""
    try:
        value, end = _scan(text)
        whole = end == len(text)
    except Exception:
        whole = False
    if whole:
        return value
    try:
        # The slower way takes what is around the value, and says what is wrong.
        return json.loads(text)
    except Exception as error:  # malformed, nested too deeply, an integer with too many digits
        raise PayloadError(f"the stored text cannot be decoded ({_name(error)}: {error})", place="payload") from error


class _Walk:
    """One pass over a payload in the order of its text, without recursion.

    `_open` holds the containers around the current item, as (iterator, key of the item in it): its length is the depth
    and its keys are the path. `_size` is a lower bound of the text's length, which ends the walk of a payload that is
    too large, or that holds the same list a million times, before anything is encoded.
    """

    def __init__(self) -> None:
        self._open: list[tuple[_Items, Any]] = []
        self._size = 0

    def check(self, payload: object) -> None:
        items: _Items = iter(((None, payload),))
        while True:
            inner = self._next_container(items)
            if inner is not None:
                items = inner
            elif self._open:
                items = self._open.pop()[0]
            else:
                return

    def _next_container(self, items: _Items) -> _Items | None:
        """Check items up to the next container and enter it; None at the end."""
        for key, item in items:
            kind = type(item)
            if kind is str:
                self._size += len(item)
                if self._size > MAX_BYTES or not item.isascii() or "\0" in item:
                    self._check_string(key, item)
            elif kind is dict or kind is list:
                return self._enter(items, key, item)
            elif kind is int:
                if not -_SMALL < item < _SMALL:
                    self._check_int(key, item)
            elif kind not in _PLAIN and (entered := self._check_other(items, key, item)):
                return entered
        if self._size > MAX_BYTES:
            raise _too_large()
        return None

    def _enter(self, items: _Items, key: Any, container: Any) -> _Items:
        if len(self._open) == MAX_DEPTH:
            raise self._error(key, container, f"is nested deeper than {MAX_DEPTH} levels, or holds itself; flatten it")
        self._open.append((items, key))
        self._size += 2 * len(container)
        if self._size > MAX_BYTES:
            raise _too_large()
        if isinstance(container, dict):
            self._check_keys(container)
            return iter(container.items())
        return enumerate(container)

    def _check_keys(self, container: dict[Any, Any]) -> None:
        for key in container:
            if type(key) is not str and (not isinstance(key, str) or isinstance(key, Enum)):
                raise self._error(key, key, "is no str key; JSON would store it as another value, use str(...)")
            self._size += len(key)
            if self._size > MAX_BYTES or not key.isascii() or "\0" in key:
                self._check_string(key, key)

    def _check_string(self, key: Any, item: str) -> None:
        if self._size > MAX_BYTES:  # it is counted already; searched only if small, for it may come a million times
            raise _too_large()
        if "\0" in item:
            raise self._error(key, item, "holds a NUL character, which PostgreSQL cannot store; leave it out")
        if has_surrogate(item):
            hint = "holds a lone surrogate, which is no character; decode it without 'surrogateescape'"
            raise self._error(key, item, hint)

    def _check_int(self, key: Any, item: int) -> None:
        self._size += item.bit_length() // 4
        if not -_BIG < item < _BIG:
            raise self._error(key, item, f"has over {MAX_DIGITS:,} digits, which Python cannot read back; use a str")

    def _check_other(self, items: _Items, key: Any, item: Any) -> _Items | None:
        """Floats, tuples and subclasses; everything else is refused."""
        if isinstance(item, float) and not isinstance(item, Enum):
            if not math.isfinite(item):
                raise self._error(key, item, "is no JSON number; use None or a str")
        elif isinstance(item, Enum) or not isinstance(item, (str, int, dict, list, tuple)):
            raise self._error(key, item, f"of type {type(item).__name__} cannot be stored as JSON; {_hint(item)}")
        elif isinstance(item, str):
            self._size += len(item)
            self._check_string(key, item)
        elif isinstance(item, int):
            self._check_int(key, item)
        else:
            return self._enter(items, key, item)
        return None

    def _error(self, key: Any, item: object, message: str) -> PayloadError:
        # The outermost item, the payload itself, has no key.
        path = [*(outer for _, outer in self._open), key][1:]
        place = "payload" + "".join(f"[{shown(step)}]" for step in path[:MAX_PATH]) + "..." * (len(path) > MAX_PATH)
        return PayloadError(f"{shown(item)} {message}", place=place, value=item)


def _hint(item: object) -> str:
    """What to write instead."""
    if isinstance(item, Enum):
        return "use its .value"
    if isinstance(item, (date, time)):
        return "use .isoformat()"
    if isinstance(item, timedelta):
        return "use .total_seconds()"
    if isinstance(item, (bytes, bytearray, memoryview)):
        return "decode it, or use base64 text"
    if hasattr(item, "__dataclass_fields__"):
        return "use dataclasses.asdict(...)"
    if hasattr(item, "model_dump"):
        return "use .model_dump(mode='json')"
    if hasattr(item, "tolist"):
        return "use .tolist()"
    if hasattr(item, "keys"):
        return "use dict(...)"
    return "use list(...)" if hasattr(item, "__iter__") else "use str(...), or an id to load it by"


def _too_large() -> PayloadError:
    limit = f"{MAX_BYTES // 1024 // 1024} MiB"
    return PayloadError(f"is larger than {limit} as JSON; store the data elsewhere and enqueue its id", place="payload")


def _name(error: Exception) -> str:
    return type(error).__name__
