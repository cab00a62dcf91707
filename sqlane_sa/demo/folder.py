"""A temporary folder for a server, which nothing leaves behind for good."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from sqlane_sa.demo.account import Account, open_to_all

PREFIX = "sqlane-pg-"
LONGEST_SOCKET = 103
"""Bytes in the path of a socket: 107 on Linux, 103 on macOS."""


class Folder:
    """`path`, with `data` and `sockets` that belong to the server's account, and the server's `log`.

    The lock in it is shared with the server's processes, which inherit `lock_fd`: while any of them or its maker lives,
    the folder is in use; after a crash the next one to be made removes it.
    """

    def __init__(self, account: Account | None, parent: Path | None = None) -> None:
        parent = _usable(parent or Path(tempfile.gettempdir()), account)
        _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            self._fill(account)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def _fill(self, account: Account | None) -> None:
        self.lock_fd = _lock(self.path)
        self.data = self._make("data", account)
        self.sockets = self._make("s", account)
        self.log = self.path / "log"
        if account is not None:
            # The other account may pass through to what belongs to it, and change nothing here.
            self.path.chmod(0o711)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock_fd)

    def log_tail(self, lines: int = 10) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _make(self, name: str, account: Account | None) -> Path:
        folder = self.path / name
        folder.mkdir(mode=0o700)
        if account is not None:
            os.chown(folder, *account)
        return folder


def _usable(parent: Path, account: Account | None) -> Path:
    """`parent`, or /tmp where that is too deep for a socket or closed to the account."""
    longest = parent / f"{PREFIX}xxxxxxxx" / "s" / ".s.PGSQL.65535"
    fits = len(os.fsencode(longest)) <= LONGEST_SOCKET
    return parent if fits and (account is None or open_to_all(parent)) else Path("/tmp")  # nosec B108


def _lock(folder: Path) -> int:
    new = folder / "lock.new"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    # Under its name only once it is held: a free lock means an abandoned folder.
    new.rename(folder / "lock")
    return fd


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(PREFIX + "*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        if folder.lstat().st_uid != os.geteuid():
            return False
        fd = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
