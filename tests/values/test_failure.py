import json
import linecache
import sys
import tracemalloc
from typing import Any

import pytest

import sqlane_sa
from sqlane_sa import (
    AttemptsExhaustedError,
    CommitRefusedError,
    Discard,
    HandlerExitError,
    JobTimeoutError,
    Retry,
    StalledError,
)
from sqlane_sa.values.failure import (
    MAX_MESSAGE_CHARS,
    MAX_TRACEBACK_CHARS,
    describe_error,
    error_json,
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
    def __init__(self, why: type[BaseException] = RuntimeError) -> None:
        self.why = why

    def __str__(self) -> str:
        raise self.why("no")


def test_an_error() -> None:
    error = describe(caught(ValueError("wrong input")), attempt=2)
    assert error["type"] == "ValueError"
    assert error["message"] == "wrong input"
    assert error["attempt"] == 2
    assert "in caught" in error["traceback"]
    assert "wrong input" not in error["traceback"]
    assert "attempt" not in describe(ValueError("x"))


def test_an_error_that_a_job_can_end_with_has_the_name_by_which_it_is_imported() -> None:
    for error in (
        Discard(),
        Retry(),
        HandlerExitError("SystemExit"),
        AttemptsExhaustedError(5, 5),
        JobTimeoutError(1.0),
        StalledError(4, 3),
        CommitRefusedError(),
    ):
        package, _, name = describe(error)["type"].partition(".")
        assert (package, getattr(sqlane_sa, name), name in sqlane_sa.__all__) == ("sqlane_sa", type(error), True)


def test_types_are_qualified() -> None:
    assert describe(json.JSONDecodeError("x", "", 0))["type"] == "json.decoder.JSONDecodeError"
    assert describe(caught(SystemExit(3)))["type"] == "SystemExit"
    assert describe(Discard())["type"] == "sqlane_sa.Discard"
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


@pytest.mark.parametrize("why", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_whatever_a_message_raises_the_error_is_described(why: type[BaseException]) -> None:
    error = describe(caught(Mute(why)))
    assert error["type"].endswith("Mute")
    assert error["message"] == f"(no message: str() of the exception raised {why.__name__})"
    assert "in caught" in error["traceback"]


def test_plain_errors_have_the_same_shape() -> None:
    error = plain_error("sqlane_sa.Custom", "m\0" + "x" * 20_000)
    assert error.keys() == describe(ValueError()).keys()
    assert error["message"].startswith("m�x")
    assert len(error["message"]) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    "unit", ["\U0001f600", "e\u0301", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u202e", "\U0010ffff"]
)
@pytest.mark.parametrize("more", range(4))
def test_a_message_is_cut_on_a_character(unit: str, more: int) -> None:
    """Whatever stands at the limit: what is left is a beginning of it, and JSON that says the same when it is read."""
    message = "x" * more + unit * MAX_MESSAGE_CHARS
    error = describe(caught(ValueError(message)))
    assert len(error["message"]) == MAX_MESSAGE_CHARS
    assert message.startswith(error["message"].removesuffix("..."))
    text = error_json(error)
    assert text is not None
    assert json.loads(text) == error
    assert len(error["message"].encode()) <= 4 * MAX_MESSAGE_CHARS


def test_the_largest_error_there_can_be_is_small_enough_to_store() -> None:
    """All four parts at their limits, in the characters that take most room: in JSON, and as jsonb keeps it."""
    widest = "\U0001f600"
    name = "<wide>"
    line = widest * 480
    # A function for each frame, for of the same line again only the first few are written.
    source = "".join(f"def f{n}(): return f{n + 1}()  # {line}\n" for n in range(60))
    source = source.replace("f60()", "1 / 0")
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)
    kind = type(widest * 500, (Exception,), {"__module__": "m"})
    try:
        try:
            scope["f0"]()
        except ZeroDivisionError:
            scope["f0"]()
    except ZeroDivisionError as cause:
        try:
            raise kind(widest * 50_000) from cause
        except Exception as exc:
            error = describe(exc, attempt=1)
    finally:
        del linecache.cache[name]
    assert widest * 100 in error["traceback"]
    assert (len(error["type"]), len(error["message"]), len(error["traceback"])) == (255, 10_000, 30_000)
    text = error_json(error)
    assert text is not None
    assert json.loads(text) == error
    assert len(json.dumps(error, ensure_ascii=False).encode()) < 200_000
    assert len(text) < 600_000


def test_a_giant_frame_is_cut_and_the_last_one_is_kept() -> None:
    """The source of one frame alone passes the limit of the whole."""
    name = "<giant>"
    huge = f"    value = '{'é' * 200_000}'; return 1 / 0\n"
    linecache.cache[name] = (1, None, ["def f():\n", huge], name)
    scope: dict[str, Any] = {}
    exec(compile("def f():\n    return 1 / 0\n", name, "exec"), scope)
    try:
        scope["f"]()
    except ZeroDivisionError as exc:
        error = describe(exc)
    finally:
        del linecache.cache[name]
    assert "<giant>" in error["traceback"]
    assert "in f" in error["traceback"]
    assert len(error["traceback"]) < 5_000
