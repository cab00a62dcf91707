"""The checks see what they are for: with a bug in the store they fail, and without it they pass."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.model import bugs
from tests.model.bugs import BUGS, Edit, seeded
from tests.model.checks import CHECKS


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.timeout(300)
def test_a_check_passes_without_a_bug(engine: sa.Engine, name: str) -> None:
    CHECKS[name](engine)


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.timeout(300)
def test_a_bug_is_caught(engine: sa.Engine, name: str) -> None:
    """By the check that the bug names: it fails with what it saw, or the database refuses."""
    with engine.begin() as conn:
        bugs.alter(name, conn)
    with seeded(name), pytest.raises((AssertionError, DBAPIError)) as caught:
        CHECKS[BUGS[name].caught_by](engine)
    print(f"{name}: {str(caught.value)[:500]}")


def test_every_check_catches_something() -> None:
    assert {bug.caught_by for bug in BUGS.values()} == set(CHECKS)


def test_a_text_that_is_not_there_any_more_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a control would pass because nothing was changed."""
    moved = bugs.Bug(bugs.SEQUENCES, (Edit("finish.COMPLETE", "AND no such text", ""),))
    monkeypatch.setattr(bugs, "BUGS", {"moved": moved})
    with pytest.raises(LookupError, match="stands 0 times in finish"):
        with seeded("moved"):
            pass


def test_after_a_bug_the_statements_are_the_right_ones_again() -> None:
    places = sorted({edit.statement for bug in BUGS.values() for edit in bug.edits})
    right = {place: bugs.statement(place) for place in places}
    for name in BUGS:
        with seeded(name):
            changed = {place for place in places if bugs.statement(place) is not right[place]}
            assert changed == {edit.statement for edit in BUGS[name].edits}
    assert {place: bugs.statement(place) for place in places} == right
