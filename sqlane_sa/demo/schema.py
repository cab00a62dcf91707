"""A schema of the demo's own on whichever server it runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema, DropSchema

from sqlane_sa.demo.errors import DemoError

LOCK_TIMEOUT = "20s"


@contextmanager
def own_schema(engine: Engine, *, keep: bool) -> Iterator[str]:
    """The name of a schema that was not there before; it is removed with all in it, however the block ends.

    With `keep` it stays when the block comes to its end. Raises `DemoError` when it cannot be removed.
    """
    name = f"sqlane_demo_{secrets.token_hex(3)}"
    stays = False
    try:
        # Within the block, for an interruption may come when the server has committed and we do not know it.
        with engine.begin() as conn:
            conn.execute(CreateSchema(name))
        yield name
        stays = keep
    finally:
        if not stays:
            _remove(engine, name)


def _remove(engine: Engine, name: str) -> None:
    try:
        with engine.begin() as conn:
            # A worker that was killed may leave a session that the server has still to notice.
            conn.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
            conn.execute(DropSchema(name, cascade=True, if_exists=True))
    except DBAPIError as error:
        reason = str(error.orig).strip().partition("\n")[0]
        raise DemoError(f"{name} could not be removed: {reason}; run DROP SCHEMA {name} CASCADE") from error
