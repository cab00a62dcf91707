"""The packaged revisions, in order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from alembic.script import Script, ScriptDirectory

from sqlane_sa.values.errors import DefinitionError, SchemaAheadError, SqlaneError

FIRST = "sqlane_0001"


def folder() -> Path:
    """The Alembic folder of the package: its `versions` may be added to an application's `version_locations`.

    Raises `SqlaneError` when the installation lacks it.
    """
    package = Path(__file__).parents[1]
    # A wheel carries it inside the package; an editable installation has it beside.
    candidates = (package / "alembic", package.parent / "alembic")
    for candidate in candidates:
        # Not just any folder of this name: beside an installed package it is Alembic's own.
        if (candidate / "versions" / f"{FIRST}.py").is_file():
            return candidate
    places = " and ".join(map(str, candidates))
    raise SqlaneError(f"the packaged revisions are missing, looked for in {places}; install sqlane_sa again")


@functools.cache
def revisions() -> Sequence[Script]:
    """All packaged revisions, the first one first: one line without branches."""
    return tuple(reversed(list(ScriptDirectory(str(folder())).walk_revisions())))


def ids() -> list[str]:
    return [script.revision for script in revisions()]


def head() -> str:
    """The newest packaged revision, such as `"sqlane_0001"`."""
    return ids()[-1]


def short(revision: str) -> str:
    """The digits of an id, such as "0001"."""
    return revision.removeprefix("sqlane_")


def between(start: int, end: int) -> Sequence[Script]:
    """What leads from the first `start` revisions to the first `end` ones, in the order in which it runs."""
    return revisions()[start:end] if start < end else revisions()[end:start][::-1]


def number(revision: str) -> int:
    """How many revisions are in the database at `revision`: "base", "head", an id, or its digits ("0001").

    Raises `DefinitionError` naming the known ones.
    """
    known = ids()
    numbers = {"base": 0, "head": len(known)}
    for count, name in enumerate(known, 1):
        numbers[name] = numbers[short(name)] = count
    if not isinstance(revision, str) or revision not in numbers:
        raise DefinitionError(
            f"revision {revision!r} is not known; this version of sqlane_sa has {', '.join(known)}, "
            'and takes "base" and "head"',
            option="revision",
            value=revision,
        )
    return numbers[revision]


def recorded_number(current: str | None) -> int:
    """How many revisions are in a database that recorded `current`. Raises `SchemaAheadError` for an unknown one."""
    if current is None:
        return 0
    if current not in ids():
        raise SchemaAheadError(
            f"the database is at revision {current}, and this version of sqlane_sa knows none after {head()}; "
            "install the version that migrated it, or a later one",
            current=current,
            head=head(),
        )
    return number(current)


def name_of(count: int) -> str | None:
    """The newest of the first `count` revisions."""
    return ids()[count - 1] if count else None
