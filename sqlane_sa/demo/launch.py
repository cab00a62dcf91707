"""Become a server program that ends with its parent: `python launch.py PARENT_PID UID:GID|- PROGRAM ARGUMENT...`

A program of its own, and not a `preexec_fn`: between fork and exec no Python is safe where there are threads. The
standard library alone, so that it starts in an instant and from any folder.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, account: str, command: list[str]) -> None:
    # What a shell's background job ignores stays ignored across exec.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if account != "-":
        _become(*map(int, account.split(":")))
    if sys.platform == "linux":
        # After the change of account, which would clear it. SIGINT is a fast shutdown to PostgreSQL.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent was gone before the server could start")
    os.execv(command[0], command)  # nosec B606


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
