"""`sqlane failed` and `sqlane retry`: what failed for good is listed, and starts again."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sqlane_sa import Backoff, Queue, migrations
from sqlane_sa.cli.failed import first_line
from sqlane_sa.cli.table import show_notes
from sqlane_sa.testing import drain
from tests.cli.conftest import Sqlane, problem

retry = importlib.import_module("sqlane_sa.cli.retry")
"""The package has the command by this name."""

Add = Callable[..., list[str]]
MESSAGE = "of no use\nmore"


@pytest.fixture
def add(engine: sa.Engine) -> Add:
    """Jobs of a name that have failed, one after the other; their ids."""

    def fail(
        name: str = "n", count: int = 1, message: str = "of no use\nmore", queue: Queue | None = None
    ) -> list[str]:
        own = queue or Queue()

        @own.job(name, max_attempts=2, backoff=Backoff(base=0))
        def handler(payload: object) -> None:
            raise ValueError(message)

        ids = []
        for _ in range(count):
            with engine.begin() as conn:
                ids.append(own.enqueue(conn, name).id)
                assert drain(conn, own, include_delayed=True, names=[name]).failed == 1
        return ids

    return fail


def statuses(engine: sa.Engine, ids: list[str]) -> list[str]:
    with engine.connect() as conn:
        return [job.status if (job := Queue().get(conn, id_)) else "gone" for id_ in ids]


class TestFailed:
    def test_each_with_the_first_line_of_its_error(self, sqlane: Sqlane, database_url: str, add: Add) -> None:
        (first,), (second,) = add("mail.send"), add("odd [b] \x1b[31m", message="\x1b[31m" + "x" * 900)
        answer = sqlane("failed", "--url", database_url)
        assert (answer.code, answer.err) == (0, "")
        heading, *lines = answer.out.splitlines()
        assert heading.split() == ["id", "name", "attempts", "stalls", "failed", "ago"]
        assert lines[0].startswith(f"{second}  odd [b] \\x1b[31m")
        assert lines[1].startswith("    ValueError: \\x1b[31mxxx") and len(lines[1]) == 500
        assert lines[2].split()[:6] == [first, "mail.send", "2", "of", "2", "0"]
        assert lines[3] == "    ValueError: of no use"
        assert len({line.index(" of 2") for line in (lines[0], lines[2])}) == 1

    def test_a_terminal_gets_the_error_wrapped(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Whole and at a space, where it has one; a program gets one line."""
        words = " ".join(f"word-{n}" for n in range(30))
        notes = [f"ValueError: {words}", "y" * 100]
        monkeypatch.setenv("COLUMNS", "80")
        for is_terminal in (True, False):
            monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
            show_notes(("id", "name"), [("1", "a"), ("2", "b")], notes)
            _, *lines = capsys.readouterr().out.splitlines()
            found = [line for line in lines if line.startswith("    ")]
            if is_terminal:
                assert len(found) > 4 and all(len(line) < 80 for line in found)
                assert " ".join(line.strip() for line in found[:-2]) == notes[0]
            else:
                assert found == [f"    {note}" for note in notes]

    def test_some_of_them(self, within: Sqlane, database_url: str, add: Add) -> None:
        a, b = add("a", 3), add("b")
        at = {"SQLANE_DATABASE_URL": database_url}
        listed = within("failed", "--names", "a,c", "--limit", "2", **at).out
        assert [id_ in listed for id_ in (*a, *b)] == [False, True, True, False]
        assert listed.splitlines()[-1].startswith("there are more: --limit shows")
        assert "there are more" not in within("failed", "--names", "a", "--names", "b", "--limit", "4", **at).out
        assert within("failed", "--names", "c", **at) == (0, "no failed job of these names is kept\n", "")

    def test_json_has_the_whole_error(self, within: Sqlane, database_url: str, add: Add) -> None:
        add("a")
        (id_,) = add("b")
        [one] = json.loads(within("failed", "--json", "--limit", "1", "--url", database_url).out)
        assert (one["id"], one["name"], one["attempts"], one["max_attempts"], one["stalls"]) == (id_, "b", 2, 2, 0)
        assert one["last_error"]["message"] == "of no use\nmore"
        assert "raise ValueError(message)" in one["last_error"]["traceback"]
        assert one["finished_at"].startswith("20") and one["age_ms"] >= 0

    def test_none(self, within: Sqlane, database_url: str) -> None:
        assert within("failed", "--url", database_url) == (0, "no failed job is kept\n", "")
        assert within("failed", "--json", "--url", database_url) == (0, "[]\n", "")

    @pytest.mark.parametrize(
        ("error", "shown"),
        [
            (None, "no error is kept"),
            ({"type": "E", "message": ""}, "E"),
            ({"message": "\n m\nn"}, "m"),
            ({"type": None, "other": 1}, "an error without type and message"),
            ([1], "[1]"),
        ],
    )
    def test_whatever_is_stored(self, error: object, shown: str) -> None:
        assert first_line(error) == shown


class TestRetry:
    def test_by_ids(self, sqlane: Sqlane, database_url: str, engine: sa.Engine, add: Add) -> None:
        ids = add(count=3)
        answer = sqlane("retry", ids[2], ids[0], ids[0], "--url", database_url)
        assert answer == (0, "2 failed jobs set back to pending\n", "")
        assert statuses(engine, ids) == ["pending", "failed", "pending"]
        queue, done = Queue(), []
        queue.job("n")(done.append)
        with engine.begin() as conn:
            assert drain(conn, queue).completed == 2

    def test_ids_of_what_has_not_failed(self, within: Sqlane, database_url: str, engine: sa.Engine, add: Add) -> None:
        (id_,) = add()
        answer = within("retry", id_, "other\n", "--url", database_url)
        assert (answer.code, answer.out) == (1, "1 failed job set back to pending\n")
        assert answer.err == (
            "sqlane: not failed, and left as they are: other\\n; `sqlane failed` lists what can be set back\n"
        )
        many = [f"{n}" for n in range(9)]
        said = problem(within("retry", id_, *many, "--url", database_url))
        assert said.startswith(f"not failed, and left as they are: {id_}, 0, 1, 2, 3 and 5 more; `sqlane failed`")

    @pytest.mark.parametrize("words", [("failed", "--names"), ("retry",), ("retry", "--names")], ids=" ".join)
    def test_what_is_not_utf8(self, sqlane: Sqlane, database_url: str, words: tuple[str, ...]) -> None:
        answer = sqlane(*words, os.fsdecode(b"n\xff"), "--url", database_url)
        assert (answer.code, answer.out) == (2, "")
        assert re.fullmatch(
            r"sqlane: invalid value for '.*': 'n\\udcff' is not UTF-8, and no name or id is like that; "
            rf"see `sqlane {words[0]} --help`\n",
            answer.err,
        )

    def test_by_names_in_batches(
        self, within: Sqlane, database_url: str, engine: sa.Engine, add: Add, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retry, "BATCH", 2)
        a, b, c = add("a", 5), add("b"), add("c")
        answer = within("retry", "--names", "a,d", "--names", "b", "--url", database_url)
        said = ["5 failed jobs of a set back to pending", "no failed job of d", "1 failed job of b set back to pending"]
        assert (answer.code, answer.out.splitlines(), answer.err) == (0, said, "")
        assert statuses(engine, a + b + c) == ["pending"] * 6 + ["failed"]

    def test_the_first_of_them(
        self, within: Sqlane, database_url: str, engine: sa.Engine, add: Add, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retry, "BATCH", 2)
        ids = add("a", 4) + add("b", 1) + add("c", 1)
        answer = within("retry", "--names", "a", "--limit", "3", "--url", database_url)
        assert answer.out == "3 failed jobs of a set back to pending\n"
        assert statuses(engine, ids) == ["pending"] * 3 + ["failed"] * 3
        answer = within("retry", "--names", "a,b,c", "--limit", "2", "--url", database_url)
        assert answer.out.splitlines() == [f"1 failed job of {name} set back to pending" for name in "ab"]
        assert statuses(engine, ids) == ["pending"] * 5 + ["failed"]

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((), "which jobs? Give their ids, as `sqlane failed` lists them, or --names"),
            (("--names", ","), "which jobs? Give their ids"),
            (("id", "--names", "n"), "ids and --names exclude each other"),
            (("id", "--limit", "1"), "--limit goes with --names"),
        ],
    )
    def test_what_is_unclear_is_refused(
        self, within: Sqlane, database_url: str, words: tuple[str, ...], said: str
    ) -> None:
        answer = within("retry", *words, "--url", database_url)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith(f"sqlane: {said}")

    def test_prefix_and_schema(self, within: Sqlane, database_url: str, engine: sa.Engine, add: Add) -> None:
        other = Queue("other_", "Another Schema")
        migrations.apply(engine, other)
        place = ("--prefix", "other_", "--schema", "Another Schema", "--url", database_url)
        (id_,) = add("theirs", queue=other)
        assert id_ in within("failed", *place).out
        assert within("failed", "--url", database_url).out == "no failed job is kept\n"
        assert within("retry", id_, *place).out == "1 failed job set back to pending\n"
