"""PostgreSQL's code of an error, from wherever the driver keeps it."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError


def sqlstate(error: DBAPIError) -> str:
    """Five characters, or "" when the server sent none (a lost connection, an error of the driver)."""
    original = error.orig
    found = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if not found and original is not None and original.args and isinstance(original.args[0], dict):
        found = original.args[0].get("C")  # pg8000 has the server's fields as they came
    return str(found or "")
