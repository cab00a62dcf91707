"""A command's engine, and what it says when the database does not do as asked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from sqlane_sa.cli.problems import Problem
from sqlane_sa.cli.url import database_url, shown
from sqlane_sa.sqlstate import is_unreachable, sqlstate

LIBPQ_DRIVERS = ("psycopg", "psycopg2")
# By itself libpq notices after minutes that a host does not answer.
LIBPQ_SETTINGS: dict[str, str | int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
LIBPQ_WORDS = re.compile(r"^connection (failed|is bad): |FATAL:  ")
LIBPQ_PLACE = re.compile(r"^connection to server .*? failed: ")
STEPS = {
    "25006": "use the URL of the primary server, or of a user who may write",
    "3F000": "name a schema with --schema, or correct the search_path of the user",
    "55P03": "somebody holds a lock on a table of the queue; run the command again when that is over",
    "42501": "grant the right to this user (docs/roles.md), or use another one",
}
MISSING = {
    "psycopg": "pip install 'psycopg[binary]'",
    "psycopg2": "pip install psycopg2-binary",
    "pg8000": "pip install pg8000",
}


@contextmanager
def connected(text: str | None, name: str, *, pool_size: int = 5, patient: bool = False) -> Iterator[Engine]:
    """An engine whose database answers, or (`patient`) may answer later; errors of the driver leave as `Problem`.

    `name` shows in pg_stat_activity.
    """
    url = database_url(text)
    engine = _engine(url, name, pool_size)
    try:
        _try_to_connect(engine, patient)
        yield engine
    except DBAPIError as error:
        raise Problem(_refused(error, url)) from error
    finally:
        engine.dispose()


def _engine(url: URL, name: str, pool_size: int) -> Engine:
    driver = url.get_driver_name()
    try:
        return create_engine(
            url,
            connect_args=_connect_args(url, name),
            pool_size=pool_size,
            pool_pre_ping=True,
            hide_parameters=True,
        )
    except NoSuchModuleError:
        raise Problem(f"SQLAlchemy knows no PostgreSQL driver {driver!r}; leave it out: postgresql://...") from None
    except ArgumentError as error:
        raise Problem(
            f"the database URL has an option that cannot be used: {_first_line(error)}; leave it out"
        ) from error
    except ImportError as error:
        why = "finds no libpq" if "pq wrapper" in str(error) else "is not installed"
        step = MISSING.get(driver, f"install {driver}")
        raise Problem(f"the driver {driver} {why}; {step}") from error


def _connect_args(url: URL, name: str) -> dict[str, Any]:
    """What the URL and the environment leave open."""
    if url.get_driver_name() not in LIBPQ_DRIVERS:
        return {}
    settings = {"fallback_application_name": name, **LIBPQ_SETTINGS}
    if os.environ.get("PGCONNECT_TIMEOUT"):
        del settings["connect_timeout"]
    return {option: value for option, value in settings.items() if option not in url.query}


def _try_to_connect(engine: Engine, patient: bool) -> None:
    try:
        engine.connect().close()
    except DBAPIError as error:
        if patient and is_unreachable(error):
            return
        reason = _reason(error, engine.url)
        raise Problem(f"cannot connect to {shown(engine.url)}: {reason}; {_next_step(reason)}") from error
    except UnicodeError as error:
        raise Problem(f"cannot connect: {shown(engine.url)} names no host that can be; correct the URL") from error
    except (TypeError, AttributeError) as error:
        raise Problem(_pg8000_tripped(error, engine.url)) from error


def _pg8000_tripped(error: TypeError | AttributeError, url: URL) -> str:
    """What pg8000 was not given, and looks for nowhere else; or an option that it does not have."""
    if url.get_driver_name() != "pg8000":
        raise error
    if "unexpected keyword" in str(error):
        return f"the database URL has an option that cannot be used: {_first_line(error)}; leave it out"
    missing = "user" if not url.username else "password" if url.password is None else None
    if missing is None:
        raise error
    return f"cannot connect to {shown(url)}: pg8000 needs a {missing}; add it to the URL"


def _next_step(reason: str) -> str:
    if "password" in reason or "authentication" in reason or "role" in reason:
        return "correct the user and password in the URL, or give the password in PGPASSWORD or ~/.pgpass"
    if "database" in reason and "does not exist" in reason:
        return "create the database, or correct the URL"
    return "see that the server runs there, or correct the URL"


def _refused(error: DBAPIError, url: URL) -> str:
    reason = _reason(error, url)
    if error.connection_invalidated:
        return f"the connection to {shown(url)} was lost: {reason}; run the command again"
    step = STEPS.get(sqlstate(error))
    return f"{shown(url)} refused: {reason}" + (f"; {step}" if step else "")


def _reason(error: DBAPIError, url: URL) -> str:
    """The last attempt of a driver that tried several addresses; its first line, for hints and contexts follow."""
    said = error.orig.args[0] if error.orig is not None and error.orig.args else ""
    # pg8000 passes the server's answer on as a dict.
    whole = str(said.get("M", said) if isinstance(said, dict) else error.orig).strip()
    text = whole.partition("Multiple connection attempts failed")[0].strip() or whole
    reason = text.splitlines()[0] if text else type(error.orig).__name__
    reason = LIBPQ_WORDS.sub("", reason)
    # `shown` says the place; but not which of several, or which one the environment names.
    one_place = url.host or len(url.normalized_query.get("host", ())) == 1
    return (LIBPQ_PLACE.sub("", reason) if one_place else reason).rstrip(".")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
