"""Names, keys and ids: the text a job is found by, checked before PostgreSQL sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlane_sa.values.errors import InvalidJobError, shown

NAME_CHARS = 255
KEY_CHARS = 512
ID_CHARS = 128
"""A B-tree row has at most 2,704 bytes, and one index holds a key and an id, each up to 4 bytes a character."""

KEYS_PER_JOB = 100
KEYS_GIVEN = 10_000
"""With repetitions: where the same few keys come from a generator without an end."""


def check_text(value: object, place: str, *, max_chars: int, what: str) -> str:
    """`value` as a plain `str` of 1 to `max_chars` characters that PostgreSQL can store.

    Raises `InvalidJobError` at `place` otherwise; `what` is its kind with the article, such as "a mutex key".
    """
    problem = _problem(value, max_chars)
    if problem:
        raise InvalidJobError(f"{shown(value)} {problem.format(what=what)}", place=place, value=value)
    # Drivers adapt a subclass by its own rules: psycopg sends a string enum as its member's name.
    return str.__str__(value)


def _problem(value: object, max_chars: int) -> str | None:
    if not isinstance(value, str):
        return "is no string; give {what} as a str"
    if not value:
        return f"is empty; {{what}} has 1 to {max_chars} characters"
    if len(value) > max_chars:
        return f"has {len(value):,} characters; {{what}} has at most {max_chars}"
    if "\0" in value:
        return "holds a NUL character, which PostgreSQL cannot store; leave it out of {what}"
    if has_surrogate(value):
        return "holds a lone surrogate, which is no character; decode {what} without 'surrogateescape'"
    return None


def has_surrogate(value: str) -> bool:
    """Whether a lone surrogate keeps `value` from being UTF-8."""
    if value.isascii():
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def check_keys(keys: object, place: str) -> tuple[str, ...] | None:
    """Mutex keys, each once, in the order of PostgreSQL's "C" collation (by code point); None for no keys.

    One string is one key. Raises `InvalidJobError` at `place` or `place[i]` for what is no key or not iterable, and for
    more than 100 different keys or 10,000 in all.
    """
    if keys is None:
        return None
    if isinstance(keys, str):
        return (check_text(keys, place, max_chars=KEY_CHARS, what="a mutex key"),)
    if isinstance(keys, (bytes, bytearray, memoryview, Mapping)) or not isinstance(keys, Iterable):
        message = f"{shown(keys)} is no list of mutex keys; give an iterable of str"
        raise InvalidJobError(message, place=place, value=keys)
    found: set[str] = set()
    for index, key in enumerate(keys):
        found.add(check_text(key, f"{place}[{index}]", max_chars=KEY_CHARS, what="a mutex key"))
        if len(found) > KEYS_PER_JOB or index >= KEYS_GIVEN:  # here, so that an endless generator ends
            raise InvalidJobError(f"a job has at most {KEYS_PER_JOB} mutex keys; lock something coarser", place=place)
    return tuple(sorted(found)) or None


def printable(text: str, keep: str = "") -> str:
    """Text for a line of a log or a cell of a table: what a terminal would obey, or would end the line, is escaped,
    but for the characters to keep."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )
