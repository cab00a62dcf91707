"""Loads Alembic without the lines that it logs about its own plugins at INFO, unless somebody has asked for them.

A worker loads it to say what is wrong with its tables, and eight lines would stand before that one.
"""

from __future__ import annotations

import logging

LOGGER = "alembic.runtime.plugins"
ASKED_BY = ("alembic", "alembic.runtime", LOGGER)
"""Whoever wants to see what Alembic does sets the level of one of these, as its alembic.ini does."""


def load() -> None:
    log = logging.getLogger(LOGGER)
    asked = any(logging.getLogger(name).level != logging.NOTSET for name in ASKED_BY)
    if not asked:
        log.setLevel(logging.WARNING)
    try:
        import alembic.operations  # noqa: F401
    finally:
        if not asked:
            log.setLevel(logging.NOTSET)


load()
