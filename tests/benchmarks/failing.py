"""Handlers' failures of the large kinds: what an exception may drag along."""

from __future__ import annotations

from collections.abc import Callable

from sqlane_sa.values.failure import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, MAX_TYPE_CHARS

LOCAL_BYTES = 200_000
DEPTH = 100
CAUSES = 20
MEMBERS = 20
# Of one, two, three and four bytes in UTF-8: a cut that counts bytes would end within one.
CHARACTERS = "aä€😀"

MAX_ERROR_BYTES = 6 * (MAX_MESSAGE_CHARS + MAX_TRACEBACK_CHARS + MAX_TYPE_CHARS) + 1_000
"""Of a `last_error` as JSON text: no character takes more than the six bytes of an escape."""


class Ballast(bytearray):
    """A large local variable, which can be counted and referred to weakly."""


class LargeError(Exception):
    pass


def message(n: int) -> str:
    return f"{n}: " + CHARACTERS * (LOCAL_BYTES // 10)


def large_locals(n: int, size: int = LOCAL_BYTES) -> None:
    ballast = Ballast(size)
    raise LargeError(f"{n}: {len(ballast)} bytes of locals")


def long_message(n: int) -> None:
    raise LargeError(message(n))


def deep(n: int, depth: int = DEPTH) -> None:
    ballast = Ballast(LOCAL_BYTES // DEPTH)
    if depth:
        deep(n, depth - 1)
    raise LargeError(f"{n}: {len(ballast)} bytes in each of {DEPTH} frames")


def chained(n: int, causes: int = CAUSES) -> None:
    ballast = Ballast(LOCAL_BYTES // CAUSES)
    try:
        if causes:
            chained(n, causes - 1)
    except LargeError as error:
        raise LargeError(f"cause {causes} of {n}, {len(ballast)} bytes") from error
    raise LargeError(message(n)[: LOCAL_BYTES // CAUSES])


def group(n: int) -> None:
    members = []
    for _ in range(MEMBERS):
        try:
            large_locals(n, LOCAL_BYTES // MEMBERS)
        except LargeError as error:
            members.append(error)
    try:
        raise ExceptionGroup(message(n), members)
    finally:
        # The frame would be a cycle of the handler's own making, which only the garbage collector frees.
        del members


KINDS: tuple[Callable[[int], None], ...] = (large_locals, long_message, deep, chained, group)


def fail(n: int) -> None:
    """One kind after the other."""
    KINDS[n % len(KINDS)](n)
