"""The worker processes of the demo, started by the command that anybody would use."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self

from sqlane_sa.demo import launch
from sqlane_sa.demo.errors import DemoError

STOP_TIMEOUT = 20.0


class Crew:
    """`with Crew(size, arguments):` runs `sqlane worker ARGUMENTS` so many times, and ends them all."""

    def __init__(self, size: int, arguments: Sequence[str]) -> None:
        self._size = size
        self._arguments = ["worker", *arguments]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    @property
    def command(self) -> str:
        return " ".join(["sqlane", *self._arguments])

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        try:
            for _ in range(self._size):
                self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self) -> None:
        """Raises `DemoError` with the last lines of its log when a worker has ended."""
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                raise DemoError(f"worker {process.pid} ended with exit code {process.returncode}", _tail(log))

    def stop(self) -> None:
        """SIGTERM, as a deployment would. Raises `DemoError` for a worker that does not end well."""
        for process in self._processes:
            process.terminate()
        for process, log in zip(self._processes, self._logs, strict=True):
            try:
                code = process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                raise DemoError(f"worker {process.pid} did not end within {STOP_TIMEOUT:g} s", _tail(log)) from None
            if code != 0:
                raise DemoError(f"worker {process.pid} ended with exit code {code}", _tail(log))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()

    def _start(self) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115
        self._logs.append(log)
        # By the launcher, so that no worker outlives the demo, whatever ends it; and in a session of its own, for a
        # Ctrl-C in the terminal is meant for the demo, which then stops its workers.
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), "-"]
        process = subprocess.Popen(  # nosec B603
            [*launcher, sys.executable, "-m", "sqlane_sa", *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._processes.append(process)


def _tail(log: IO[bytes], lines: int = 10) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
