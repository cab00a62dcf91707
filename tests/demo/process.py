"""`sqlane demo` as a process, and what it may leave behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sqlane_sa", *arguments]


def environment(**given: str) -> dict[str, str]:
    """Ours, without what would tell the command line something."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SQLANE_D", "PG"))}
    return kept | given


class Demo:
    """A running `sqlane demo`, whose lines are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> re.Match[str]:
        """The first line from here on that matches. It must come before the demo ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"{pattern} did not come: {self.lines}")

    def worker_pids(self) -> list[int]:
        """Once its workers are at work."""
        found = self.read_until(r"2 processes: (\d+), (\d+)")
        return list(map(int, found.groups()))

    def end(self) -> tuple[int, str, str]:
        """Exit code, everything on stdout, and on stderr."""
        out, err = self.process.communicate(timeout=90)
        return self.process.returncode, "".join(self.lines) + out, err


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[Demo]:
    process = subprocess.Popen(
        command("demo", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    try:
        yield Demo(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def schemas(url: str) -> list[str]:
    """Those of demos."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    return [name for name in sa.inspect(engine).get_schema_names() if name.startswith("sqlane_demo")]


def is_alive(pid: int) -> bool:
    """False for a zombie too: not every container has an init that reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_of(folder: Path) -> list[str]:
    """The command lines of all processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            found.append(line)
    return found
