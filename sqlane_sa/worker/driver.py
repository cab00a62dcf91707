"""What SQLAlchemy has no word for and drivers do differently: sockets, how long to try, and LISTEN."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Any, NamedTuple

from sqlalchemy import Engine

_LIBPQ = ("psycopg", "psycopg2")

KEEPALIVE_IDLE = 10
KEEPALIVE_INTERVAL = 5
KEEPALIVE_COUNT = 3
"""Seconds of silence until the first probe, seconds between probes, and how many may stay unanswered."""


def can_listen(engine: Engine) -> bool:
    """Whether notifications can be waited for on a connection's socket."""
    return engine.dialect.driver == "psycopg"


def received(driver_connection: Any) -> list[str]:
    """The payloads of the notifications that have arrived, without a wait for more."""
    session = driver_connection.pgconn
    session.consume_input()
    payloads: list[str] = []
    while (notification := session.notifies()) is not None:
        payloads.append(notification.extra.decode(errors="replace"))
    return payloads


def connect_options(driver: str, given: dict[str, Any], deadline: float) -> dict[str, Any]:
    """What to connect with beside `given`, so that a peer that is gone without a word is found within `deadline`
    seconds and a few probes. What the application chose itself stays, also by PGCONNECT_TIMEOUT.

    libpq's own defaults wait over a minute for a connection, and over two hours for a reply.
    """
    if driver not in _LIBPQ:
        return {}
    ours: dict[str, Any] = {
        "connect_timeout": max(2, round(deadline)),
        "keepalives": 1,
        "keepalives_idle": KEEPALIVE_IDLE,
        "keepalives_interval": KEEPALIVE_INTERVAL,
        "keepalives_count": KEEPALIVE_COUNT,
        "tcp_user_timeout": round(deadline * 1000),
    }
    if "PGCONNECT_TIMEOUT" in os.environ:
        del ours["connect_timeout"]
    return {name: value for name, value in ours.items() if name not in given}


def file_number(driver_connection: Any) -> int | None:
    """Of the connection's socket; None where the driver does not tell, or the connection is closed."""
    try:
        if hasattr(driver_connection, "fileno"):
            return int(driver_connection.fileno())
        return int(driver_connection._usock.fileno())  # pg8000
    except Exception:  # each driver has errors of its own for a closed connection
        return None


def has_arrived(driver_connection: Any) -> bool:
    """Whether there is something to read from the server, or the end of the connection; True where the driver does not
    tell."""
    number = file_number(driver_connection)
    return number is None or is_readable(number)


def is_readable(file_number: int) -> bool:
    poll = select.poll()  # select.select ends at file number 1023
    poll.register(file_number, select.POLLIN)
    return bool(poll.poll(0))


class Session(NamedTuple):
    """What tells a session of the server from others: its process id, the port of this end (-1: a socket of the file
    system), and when it began, in monotonic seconds."""

    pid: int
    port: int
    began: float


def session_of(driver_connection: Any) -> Session | None:
    """The session of a connection that was opened just now; None where the driver does not tell."""
    number = file_number(driver_connection)
    process = getattr(getattr(driver_connection, "info", None), "backend_pid", None)
    if number is None or process is None:
        return None
    with socket.socket(fileno=os.dup(number)) as own:
        port = -1 if own.family == socket.AF_UNIX else int(own.getsockname()[1])
    return Session(int(process), port, time.monotonic())


def is_pooled(driver_connection: Any) -> bool | None:
    """Whether a pooler stands before the server: it makes up the process ids that it tells. None where the driver does
    not tell, or was told to prepare nothing, as one is behind a pooler. Called outside a transaction."""
    if getattr(driver_connection, "prepare_threshold", None) is None:
        return None
    (pid,) = driver_connection.execute("SELECT pg_backend_pid()").fetchone()
    driver_connection.rollback()
    return bool(pid != driver_connection.info.backend_pid)


def keep_alive(driver_connection: Any) -> None:
    """Let the server look, too, whether this end is there: with its own defaults a machine that lost its power keeps
    its locks for two hours. On a session of our own, outside a transaction."""
    driver_connection.execute(
        f"SELECT set_config('tcp_keepalives_idle', '{KEEPALIVE_IDLE}', false),"
        f" set_config('tcp_keepalives_interval', '{KEEPALIVE_INTERVAL}', false),"
        f" set_config('tcp_keepalives_count', '{KEEPALIVE_COUNT}', false)"
    )
    driver_connection.commit()


def prepare_at_once(driver_connection: Any) -> None:
    """For a session that runs a few statements for ever: each is planned once, and not six times."""
    if hasattr(driver_connection, "prepare_threshold"):
        driver_connection.prepare_threshold = 0


def stop_preparing(driver_connection: Any) -> None:
    """Behind a pooler each transaction may be another session's, where a statement of that name is missing or is
    somebody else's."""
    driver_connection.prepare_threshold = None
