"""Who runs the server: the present user, or `nobody` in place of root, whom PostgreSQL refuses."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import NamedTuple

from sqlane_sa.demo.errors import ServerError

ROOTS_STAND_IN = "nobody"


class Account(NamedTuple):
    """A user that is not the present one: `uid`, `gid`."""

    uid: int
    gid: int


def other_account() -> Account | None:
    """The account to change to before starting a server; None: stay who we are. Raises `ServerError`."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ROOTS_STAND_IN)
    except KeyError:
        raise ServerError(
            f"PostgreSQL does not run as root, and there is no user {ROOTS_STAND_IN!r} to run it as; use another user"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


def open_to_all(path: Path) -> bool:
    """Whether any user can read `path` and pass through the folders above it; links are followed.

    It knows mode bits only: a no where an access list would say yes costs a copy, and nothing else.
    """
    path = path.resolve()
    above = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    return above and path.stat().st_mode & needed == needed
