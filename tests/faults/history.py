"""The history of a chaos run: one JSON object a line, with the time in seconds since the epoch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple


class Window(NamedTuple):
    """A fault, and the times between which it lasted."""

    kind: str
    started_at: float
    ended_at: float


class History:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self.windows: list[Window] = []

    def note(self, event: str, **facts: Any) -> None:
        self._file.write(json.dumps({"at": round(time.time(), 4), "event": event, **facts}) + "\n")
        self._file.flush()

    def window(self, kind: str, started_at: float, problem: str | None) -> None:
        """A fault has ended; `problem` says why it could not be done, or only in part."""
        window = Window(kind, started_at, time.time())
        self.windows.append(window)
        self.note("fault", kind=kind, started_at=round(started_at, 4), problem=problem)

    def close(self) -> None:
        self._file.close()
