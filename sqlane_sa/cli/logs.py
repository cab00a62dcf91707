"""Logging of a command: to stderr, unless the application has arranged its own."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEVELS = ("debug", "info", "warning", "error", "critical")


def configure(level: str) -> None:
    """One handler on the root logger; or none, where the application's own would print each line a second time."""
    names = ("", "sqlane_sa", "sqlane_sa.worker")
    handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
    if all(isinstance(handler, logging.NullHandler) for handler in handlers):
        # force: a NullHandler on the root logger would otherwise keep basicConfig from doing anything.
        logging.basicConfig(level=level.upper(), format=FORMAT, force=True)
        # Eight lines about its own start, before the first of ours.
        logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
