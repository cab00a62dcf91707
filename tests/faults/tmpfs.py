"""A small file system in memory, to be filled."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sqlane_sa.demo.account import other_account

CHUNK = 64 * 1024


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A folder on a file system of that size, which belongs to the account that servers of ours run as.

    Skips the test where nobody may mount one. Everything in use there has to be gone at the end of the block.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    folder = Path(tempfile.mkdtemp(prefix="sqlane-disk-", dir="/tmp"))
    try:
        # The account passes through it.
        folder.chmod(0o711)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        try:
            yield _own_folder(folder)
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    finally:
        shutil.rmtree(folder)


def _own_folder(mount: Path) -> Path:
    own = mount / "data"
    own.mkdir(mode=0o700)
    account = other_account()
    if account is not None:
        os.chown(own, *account)
    return own


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """No byte is free within the block."""
    filler = disk.parent / "filler"
    try:
        _fill(filler)
        yield
    finally:
        filler.unlink()


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        for size in (CHUNK, 1):
            while True:
                try:
                    file.write(bytes(size))
                except OSError:
                    break
