"""The queues and reference loops that are measured: scripts of one protocol (see `common.py`), and how to call them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OURS = Path(__file__).with_name("peer_sqlane.py")
LOG = tempfile.TemporaryFile("w+")  # noqa: SIM115
"""What the scripts complain of. One file for all: it is read only when one fails."""
TAIL = 400


class NotInstalledError(Exception):
    """A peer that is not there, and why."""


class Peer:
    """One script with its settings. `info` is what it says of itself."""

    def __init__(self, label: str, command: list[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.label = label
        self._command = command
        self._folder = folder
        self._variables = {**os.environ, **variables}
        self.info: dict[str, Any] = self.call("info")

    def call(self, operation: str, *arguments: object) -> dict[str, Any]:
        """Run one operation to its end; the last thing it said. Raises RuntimeError with its complaint."""
        command = [*self._command, operation, *map(str, arguments)]
        done = subprocess.run(command, cwd=self._folder, env=self._variables, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.label} {operation}: {done.stderr.strip()[-TAIL:]}")
        said = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(said[-1]) if said else {}

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Its `work`, in a process group of its own."""
        return subprocess.Popen(
            [*self._command, "work", *arguments],
            cwd=self._folder,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=LOG,
            start_new_session=True,
        )


def ours(label: str = "ours", **variables: object) -> Peer:
    """sqlane_sa, with variables of `peer_sqlane.py`."""
    named = {name: str(value) for name, value in variables.items()}
    return Peer(label, [sys.executable, str(OURS)], OURS.parent, named)


def other(name: str, folder: Path | None) -> Peer:
    """One of the `peers.json` in a folder. Raises `NotInstalledError`."""
    if folder is None:
        raise NotInstalledError("no --bench FOLDER was given")
    commands = json.loads((folder / "peers.json").read_text())
    if name not in commands:
        raise NotInstalledError(f"{folder.name}/peers.json has no {name}")
    command = [os.path.expandvars(part) for part in commands[name]]
    unset = [part for part in command if "$" in part]
    if unset:
        raise NotInstalledError(f"{unset[0].split('/')[0]} is not set")
    program = next(part for part in command if part != "env" and "=" not in part)
    if shutil.which(program) is None:
        raise NotInstalledError(f"{Path(program).name} is not where peers.json says")
    try:
        return Peer(name, command, folder, {})
    except RuntimeError as error:
        raise NotInstalledError(str(error).strip().splitlines()[-1]) from error


def complaints() -> str:
    """The end of what workers wrote to their standard error."""
    LOG.seek(0)
    return LOG.read().strip()[-TAIL:]
