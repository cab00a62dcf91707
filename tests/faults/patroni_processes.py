"""The processes of a folder: `python patroni_processes.py FOLDER...` ends them all when its standard input does.

A server that Patroni started is nobody's child, and outlives Patroni and the test. What was started for a folder has
its working directory in there: Patroni with all that it runs, and a server's processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def processes(folder: Path) -> list[int]:
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_in(folder, pid)]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all(folder: Path) -> bool:
    """Whether there was none. One that is being started may have yet to appear: ask until there is none."""
    pids = processes(folder)
    for pid in pids:
        kill(pid)
    return not pids


def end_with_us(folders: Iterable[Path]) -> subprocess.Popen[bytes]:
    """A process that does this when we close its input, or end."""
    command = [sys.executable, "-I", "-S", __file__, *map(str, folders)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", start_new_session=True)


def _is_in(folder: Path, pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


if __name__ == "__main__":
    sys.stdin.read()
    for folder in map(Path, sys.argv[1:]):
        while not kill_all(folder):
            time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)
