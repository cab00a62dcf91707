"""What can go wrong with a server of our own, and with the demo on it."""

from __future__ import annotations

from sqlane_sa.values.errors import SqlaneError


class DemoError(SqlaneError):
    """The demo could not go on: `log`, the last lines that a process of it wrote."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}; the last lines of its log:\n{log}" if log else message)
        self.log = log


class ServerError(DemoError):
    """A PostgreSQL server could not be found, started or stopped."""
