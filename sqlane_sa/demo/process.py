"""A server program as a child of ours that never outlives us on Linux."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread

from sqlane_sa.demo import launch
from sqlane_sa.demo.account import Account
from sqlane_sa.demo.folder import Folder


class Process:
    """A child and its keeper, a thread that lives as long: Linux ends the child with the *thread* that started it.

    Its output goes to the folder's log.
    """

    def __init__(self, command: list[str], account: Account | None, folder: Folder) -> None:
        started: Future[subprocess.Popen[bytes]] = Future()
        becomes = f"{account.uid}:{account.gid}" if account else "-"
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), becomes]
        self._keeper = Thread(
            target=_keep, args=([*launcher, *command], folder, started), name="sqlane-postgres", daemon=True
        )
        self._keeper.start()
        try:
            self._popen = started.result()
        except BaseException:
            # Interrupted: it starts all the same. Where the start itself failed, there is nothing to kill.
            if started.exception() is None:
                self._popen = started.result()
                self.kill()
            raise
        self.pid = self._popen.pid

    @property
    def running(self) -> bool:
        return self._keeper.is_alive()

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens once it has ended."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill it with all its children, if it still runs, and wait for its end."""
        if self._popen.poll() is None:
            # It leads a session and so a group of its own. Its keeper may just have seen its end, and not said so yet.
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._keeper.join()

    def wait(self, timeout: float) -> bool:
        """Whether it ended within `timeout` seconds."""
        self._keeper.join(timeout)
        return not self.running


def _keep(command: list[str], folder: Folder, started: Future[subprocess.Popen[bytes]]) -> None:
    try:
        process = _start(command, folder)
    except BaseException as error:
        started.set_exception(error)
    else:
        started.set_result(process)
        process.wait()


def _start(command: list[str], folder: Folder) -> subprocess.Popen[bytes]:
    with folder.log.open("ab") as log:
        return subprocess.Popen(  # nosec B603
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder.path,
            env=_environment(),
            pass_fds=[folder.lock_fd],
            # Ctrl-C in the terminal is for us: we stop the server when we are done with it.
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """Ours without what is meant for clients and servers of other databases: PGDATA, PGPORT, PGOPTIONS."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
