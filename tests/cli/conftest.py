from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa

from sqlane_sa.cli import main
from tests.conftest import new_database
from tests.support import wait_until

APP = """
from sqlane_sa import Queue

queue = Queue({place})


@queue.job("note")
def note(payload, ctx):
    with open("noted", "a") as file:
        file.write(f"{{payload}}\\n")


@queue.job("other")
def other(payload, ctx):
    note(payload, ctx)


@queue.job("fail")
def fail(payload, ctx):
    raise ValueError("of no use")
"""


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Sqlane = Callable[..., Answer]
Start = Callable[..., subprocess.Popen[str]]


def environment(**given: str) -> dict[str, str]:
    """Ours, without what would tell the command line something; 80 columns."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SQLANE_", "PG"))}
    return kept | {"COLUMNS": "80"} | given


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sqlane_sa", *arguments]


def problem(answer: Answer) -> str:
    """The one sentence on stderr of a command that found a problem, without its `sqlane: `."""
    assert answer.code == 1, answer
    assert answer.out == ""
    assert "Traceback" not in answer.err
    (line,) = answer.err.splitlines()
    assert line.startswith("sqlane: ")
    return line.removeprefix("sqlane: ")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `sqlane ARGUMENTS` as a process in `tmp_path`; what is given by name is its environment. Killed at the end
    of the test if it is still there."""
    processes: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(**variables),
        )
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def sqlane(start: Start) -> Sqlane:
    """Run `sqlane ARGUMENTS` to its end."""
    return lambda *arguments, **variables: ended(start(*arguments, **variables))


@pytest.fixture
def within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sqlane]:
    """As `sqlane`, within this process and so in a tenth of the time; any error but a clean exit is the test's."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **variables: str) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            for name in set(os.environ) - set(environment()):
                patch.delenv(name)
            for name, value in environment(**variables).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as caught:
                main(arguments, prog_name="sqlane")
        return Answer(int(caught.value.code or 0), out.getvalue(), err.getvalue())

    monkeypatch.setattr(sys, "path", list(sys.path))
    yield run
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def ended(process: subprocess.Popen[str], number: signal.Signals | None = None) -> Answer:
    """What it answered by its end, which `number` asks for."""
    if number is not None:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return Answer(process.returncode, out, err)


@pytest.fixture
def empty_url(server: object, admin: sa.Engine) -> Iterator[str]:
    """A database in which nothing was migrated."""
    with new_database(admin) as name:
        yield server.url(name, tcp=True)  # type: ignore[attr-defined]


@pytest.fixture
def app(tmp_path: Path) -> Callable[..., None]:
    """Write a module `app` into the folder that commands run in."""

    def write(place: str = "", more: str = "", name: str = "app.py") -> None:
        (tmp_path / name).write_text(APP.format(place=place) + more)

    return write


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[int], list[str]]:
    """Wait until handlers have noted so many payloads, and return all that they noted."""

    def wait(count: int) -> list[str]:
        file = tmp_path / "noted"
        return wait_until(
            lambda: lines if file.exists() and len(lines := file.read_text().splitlines()) >= count else [],
            message=f"{count} notes",
        )

    return wait
