"""What the command line says about itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version

import pytest

from tests.cli.conftest import Sqlane, problem

COMMANDS = ["migrate", "worker", "stats", "failed", "retry", "doctor", "demo"]
MIGRATE_COMMANDS = ["upgrade", "downgrade", "current", "check"]


def test_help(sqlane: Sqlane, within: Sqlane) -> None:
    answer = sqlane("--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Usage: sqlane [OPTIONS] COMMAND [ARGS]...\n")
    assert all(f"\n  {command} " in answer.out for command in COMMANDS)
    assert answer.out == within("-h").out


def test_version(sqlane: Sqlane) -> None:
    assert sqlane("--version") == (0, f"sqlane, version {version('sqlane_sa')}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        (),
        *((command,) for command in COMMANDS),
        *(("migrate", w) for w in ("upgrade", "downgrade", "current", "check")),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", ["80", "120"])
def test_each_command_has_a_help_that_fits(within: Sqlane, words: tuple[str, ...], columns: str) -> None:
    answer = within(*words, "--help", COLUMNS=columns)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(" ".join(["Usage: sqlane", *words, "[OPTIONS]"]))
    assert all(len(line) <= int(columns) for line in answer.out.splitlines())
    # Nothing is cut off.
    assert "..." not in re.sub(r"\[(ARGS|ID)\]\.\.\.|NAME,\.\.\.", "", answer.out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bogus",), "there is no command 'bogus'; `sqlane --help` lists them all"),
        (("stat",), "there is no command 'stat'; did you mean stats? `sqlane --help` lists them all"),
        (("migrate", "upgade"), "there is no command 'upgade'; did you mean upgrade? `sqlane migrate --help` lists"),
        (("--bogus",), "there is no option --bogus; `sqlane --help` lists them all"),
        (("stats", "--uri", "x"), "there is no option --uri; did you mean --url"),
        (("stats", "app:queue", "more"), "got unexpected extra argument (more); see `sqlane stats --help`"),
        (("worker",), "missing argument 'MODULE:QUEUE'; see `sqlane worker --help`"),
        (
            ("worker", "app:queue", "--lease", "1m"),
            "invalid value for '--lease': '1m' is no number of seconds, such as 60",
        ),
        (("worker", "app:queue", "--lease"), "option '--lease' requires an argument; see `sqlane"),
        (("worker", "app:queue", "--log-level", "loud"), "invalid value for '--log-level'"),
        (("migrate", "downgrade"), "missing argument 'REVISION'; see `sqlane migrate downgrade --help`"),
        (("demo", "--orders", "3"), "invalid value for '--orders': 3 is not in the range 50<=x<=1000000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_sentence_with_the_next_step(within: Sqlane, words: tuple[str, ...], said: str) -> None:
    answer = within(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"sqlane: {said}")
    assert len(answer.err.splitlines()) == 1
    assert "--help`" in answer.err


def test_without_a_command_it_shows_the_help(within: Sqlane) -> None:
    answer = within()
    assert "Usage: sqlane [OPTIONS] COMMAND" in answer.out + answer.err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--concurrency", "0", "concurrency=0 is not an integer from 1 to 10000"),
        ("--lease", "0", "lease=0.0 is out of range; use at least"),
        ("--lease", "nan", "lease=nan is not finite; use a number of seconds"),
        ("--poll-interval", "-1", "poll_interval=-1.0 is out of range; use at least"),
        ("--names", ",", "names is empty; leave it out to serve all names"),
        ("--names", "nope", "no job is named 'nope' on this queue; did you mean 'note'?"),
        ("--worker-id", "", "worker_id"),
    ],
)
def test_worker_options_that_cannot_be(
    within: Sqlane, app: Callable[..., None], database_url: str, option: str, value: str, said: str
) -> None:
    app()
    assert problem(within("worker", "app:queue", option, value, "--url", database_url)).startswith(said)
