import json
import linecache
import sys
import tracemalloc
from typing import Any

import pytest

from sqlane_sa.values.failure import (
    MAX_MESSAGE_CHARS,
    MAX_TRACEBACK_CHARS,
    describe_error,
    plain_error,
)


def caught(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as error:
        return error


def describe(exc: BaseException, **options: Any) -> dict[str, Any]:
    error = describe_error(exc, **options)
    text = json.dumps(error, allow_nan=False, ensure_ascii=False)
    assert "\0" not in text
    text.encode()
    assert len(error["message"]) <= MAX_MESSAGE_CHARS
    assert len(error["traceback"]) <= MAX_TRACEBACK_CHARS
    return error


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_error() -> None:
    error = describe(caught(ValueError("wrong input")), attempt=2)
    assert error["type"] == "ValueError"
    assert error["message"] == "wrong input"
    assert error["attempt"] == 2
    assert "in caught" in error["traceback"]
    assert "wrong input" not in error["traceback"]
    assert "attempt" not in describe(ValueError("x"))


def test_types_are_qualified() -> None:
    assert describe(json.JSONDecodeError("x", "", 0))["type"] == "json.decoder.JSONDecodeError"
    assert describe(caught(SystemExit(3)))["type"] == "SystemExit"
    odd = type("Odd", (Exception,), {"__module__": "m\ud800", "__qualname__": "A\0" + "x" * 1000})
    assert describe(odd())["type"].startswith("m�.A�x")


@pytest.mark.parametrize(
    ("exc", "message"),
    [
        (ValueError("a\0b\ud800c"), "a�b�c"),
        (Mute(), "(no message: str() of the exception raised RuntimeError)"),
        (KeyError("k"), "'k'"),
        (ValueError(), ""),
        (KeyboardInterrupt(), ""),
    ],
)
def test_messages(exc: BaseException, message: str) -> None:
    assert describe(caught(exc))["message"] == message


def test_an_exception_that_was_never_raised_has_no_traceback() -> None:
    assert describe(ValueError("x"))["traceback"] == ""


def test_a_message_of_200_mb_is_not_copied() -> None:
    exc = caught(ValueError("x" * 200_000_000))
    try:
        raise RuntimeError("outer") from exc
    except RuntimeError as error:
        outer = error
    tracemalloc.start()
    error = describe(exc)
    describe(outer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error["message"].endswith("x...")
    assert peak < 5_000_000


def test_causes_come_first_and_the_raising_frame_last() -> None:
    def inner() -> None:
        raise KeyError("user_id")

    try:
        try:
            inner()
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        text = describe(error)["traceback"]
    assert text.index("KeyError: 'user_id'") < text.index("direct cause") < text.index("in test_causes", 300)
    assert text.rstrip().endswith('raise RuntimeError("outer") from error')


def test_context_shows_unless_suppressed() -> None:
    first, second = caught(KeyError("first")), caught(ValueError("second"))
    second.__context__ = first
    assert "During handling" in describe(second)["traceback"]
    second.__suppress_context__ = True
    assert "first" not in describe(second)["traceback"]


def test_a_ring_of_causes_ends() -> None:
    first, second = caught(KeyError("first")), caught(ValueError("second"))
    first.__cause__, second.__cause__ = second, first
    assert describe(first)["traceback"].count("direct cause") == 1


def test_groups_tell_of_their_members() -> None:
    group = ExceptionGroup("several", [ValueError(f"member {n}") for n in range(1000)])
    nested = BaseExceptionGroup("outer", [group, KeyboardInterrupt()])
    error = describe(caught(nested))
    assert error["message"] == "outer (2 sub-exceptions)"
    assert "several (1000 sub-exceptions)" in error["traceback"]
    assert "ValueError: member 0" in error["traceback"]
    assert "member 999" not in error["traceback"]


def test_recursion_keeps_the_last_frames() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    with pytest.raises(RecursionError) as info:
        deeper(0)
    text = describe(info.value)["traceback"]
    assert "in deeper" in text
    assert "in test_recursion" not in text


def test_a_chain_of_long_lines_is_capped_from_the_front() -> None:
    name = "<generated>"
    source = "def f(n):\n    " + "x = 1; " * 10_000 + f"return f(n - 1) if n else 1 / 0  # \0\ud800\n{'#' * 1000}"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(source.split("#")[0], name, "exec"), scope)
    try:
        scope["f"](60)
    except ZeroDivisionError as exc:
        error = describe(exc)
    finally:
        del linecache.cache[name]
    assert "<generated>" in error["traceback"]


def test_broken_frames_do_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linecache, "checkcache", lambda *args: 1 / 0)
    error = describe(caught(ValueError("x")))
    assert error["message"] == "x"
    assert "no traceback" in error["traceback"] or sys.version_info >= (3, 13)


def test_plain_errors_have_the_same_shape() -> None:
    error = plain_error("sqlane_sa.Custom", "m\0" + "x" * 20_000)
    assert error.keys() == describe(ValueError()).keys()
    assert error["message"].startswith("m�x")
    assert len(error["message"]) == MAX_MESSAGE_CHARS
