"""docs/migrations.md: the blocks that are no file of a project, run as they stand; test_doors.py has the others."""

import shlex

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sqlane_sa import Queue, migrations
from sqlane_sa.cli import main
from sqlane_sa.values.errors import SchemaBehindError
from tests.migrations import project

BLOCKS = [block.partition("\n") for block in project.DOCS.read_text().split("```")[1::2]]


def test_every_block_is_run_somewhere() -> None:
    assert sorted(language for language, _, _ in BLOCKS) == [
        "",
        "ini",
        "python",
        "python",
        "python",
        "python",
        "python",
        "sh",
        "toml",
    ]


def test_the_commands(empty_url: str, empty: sa.Engine) -> None:
    """One after the other: with the fifth the tables are gone, and it says so."""
    [block] = [text for language, _, text in BLOCKS if not language]
    results = []
    for line in block.splitlines():
        program, *arguments = shlex.split(line.partition("#")[0].partition(">")[0])
        assert program == "sqlane"
        results.append(CliRunner().invoke(main, [*arguments, "--url", empty_url]))
    assert [result.exit_code for result in results] == [0, 0, 0, 0, 1, 0]
    outputs = [result.output.strip() for result in results]
    assert outputs[0].endswith(f"migrated from base to {migrations.head()}")
    assert outputs[2].endswith(f"migrated from {migrations.head()} to base")
    assert outputs[3] == "base (not migrated yet; `sqlane migrate` makes the tables)"
    assert outputs[4].startswith("sqlane: the tables 'sqlane_*' are not in the database")
    assert outputs[5].startswith("BEGIN;")
    assert sa.inspect(empty).get_table_names() == []


@pytest.mark.usefixtures("two_revisions")
def test_the_calls_from_python(empty: sa.Engine) -> None:
    """Each line in turn; after the second one there is nothing to check."""
    names = {"migrations": migrations, "engine": empty, "queue": Queue()}
    lines = project.FROM_PYTHON.splitlines()
    found = []
    for line in lines:
        if "check" in line:
            with pytest.raises(SchemaBehindError, match="are not in the database"):
                eval(line, names)
        else:
            found.append(eval(line, names))
    assert found[:3] == [["sqlane_0001", "sqlane_0002"], ["sqlane_0002", "sqlane_0001"], None]
    assert "ADD COLUMN extra" in found[3]
