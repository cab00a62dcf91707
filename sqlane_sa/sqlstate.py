"""What an error of the driver says: PostgreSQL's code, from wherever the driver keeps it, and whether it may pass."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

UNDEFINED_TABLE = "42P01"

# SQLSTATE: lost or refused connections, no room for one more, a server that starts, stops or recovers, a time limit of
# the role's.
_COMING_BACK = ("08", "53", "57P", "57014", "55P03", "25P03")
# libpq has no code for what a server says before a session begins, only the words.
_COMING_BACK_WORDS = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots", "not yet")


def sqlstate(error: DBAPIError) -> str:
    """Five characters, or "" when the server sent none (a lost connection, an error of the driver)."""
    original = error.orig
    found = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if not found and original is not None and original.args and isinstance(original.args[0], dict):
        found = original.args[0].get("C")  # pg8000 has the server's fields as they came
    return str(found or "")


def is_unreachable(error: DBAPIError) -> bool:
    """Whether the database may answer later; a refusal (password, name of the database, rights) stays one."""
    code = sqlstate(error)
    if code:
        return code.startswith(_COMING_BACK)
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    message = str(error.orig)
    return "FATAL" not in message or any(words in message for words in _COMING_BACK_WORDS)
