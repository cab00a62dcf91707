"""The database URL of a command. Its password is never shown, however the URL is wrong."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from sqlane_sa.cli.options import VARIABLE
from sqlane_sa.cli.problems import Problem

EXAMPLE = "postgresql://user@host:5432/database"
ASYNC_DRIVERS = ("asyncpg", "psycopg_async")


def database_url(text: str | None) -> URL:
    """The URL with its driver. Raises `Problem`."""
    if not text:
        raise Problem(f"which database? Give --url, or set {VARIABLE}, for example to {EXAMPLE}")
    if text.partition("?")[0].count("@") > 1:
        # SQLAlchemy would take what follows the first one for the host, and the driver would print it.
        raise Problem("the database URL has more than one @; write one that belongs to the user or password as %40")
    return _with_driver(_parsed(text))


def shown(url: URL) -> str:
    """Whose database and where, for messages."""
    user = f"{url.username}@" if url.username else ""
    # As in a query of libpq: several hosts, or the folder of a socket.
    host = url.host or ",".join(url.normalized_query.get("host", ()))
    if host and not host.startswith(("/", "@")):
        port = f":{url.port}" if url.port else ""
        return f"{user}{host}{port}" + (f"/{url.database}" if url.database else "")
    database = f"the database {url.database} on " if url.database else ""
    return database + (f"the server with its socket in {host}" if host else "the default server")


def _parsed(text: str) -> URL:
    try:
        return make_url(text)
    except ArgumentError:
        raise Problem(f"the database URL cannot be understood; write it as {EXAMPLE}") from None
    except ValueError:
        raise Problem(f"the port in the database URL is not a number; write it as {EXAMPLE}") from None


def _with_driver(url: URL) -> URL:
    backend, _, driver = url.drivername.partition("+")
    if backend not in ("postgresql", "postgres"):
        raise Problem(f"the database URL is for {backend!r}, and sqlane needs PostgreSQL; write it as {EXAMPLE}")
    if driver in ASYNC_DRIVERS:
        raise Problem(f"{driver} is an async driver, and commands need a plain one; write {EXAMPLE} for psycopg")
    return url.set(drivername=f"postgresql+{driver or 'psycopg'}")
