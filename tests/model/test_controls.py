"""The checks see what they are for: with a bug in the store they fail, and without it they pass."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.model import bugs
from tests.model.bugs import BUGS, Edit, seeded
from tests.model.checks import CHECKS

CAUGHT = [(name, bug.caught_by) for name, bug in BUGS.items()] + [(name, bugs.SEQUENCES) for name in bugs.IN_SEQUENCES]


@pytest.mark.parametrize("check", sorted(CHECKS.keys() - {bugs.SEQUENCES}))
@pytest.mark.timeout(300)
def test_a_check_passes_without_a_bug(engine: sa.Engine, check: str) -> None:
    """That the sequences do is the test of the model itself."""
    CHECKS[check](engine)


@pytest.mark.parametrize(("bug", "check"), CAUGHT)
@pytest.mark.timeout(300)
def test_a_bug_is_caught(engine: sa.Engine, bug: str, check: str) -> None:
    """The check fails with what it saw, or the database refuses."""
    with engine.begin() as conn:
        bugs.alter(bug, conn)
    with seeded(bug), pytest.raises((AssertionError, DBAPIError)) as caught:
        CHECKS[check](engine)
    print(f"{bug}: {str(caught.value)[:500]}")


def test_every_check_catches_something() -> None:
    assert {check for _, check in CAUGHT} == set(CHECKS)


def test_a_text_that_is_not_there_any_more_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a control would pass because nothing was changed."""
    moved = bugs.Bug(bugs.SEQUENCES, (Edit("finish.COMPLETE", "AND no such text", ""),))
    monkeypatch.setattr(bugs, "BUGS", {"moved": moved})
    with pytest.raises(LookupError, match="stands 0 times in finish"):
        with seeded("moved"):
            pass


def test_a_bug_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker process of the chaos run has it."""
    right = bugs.statement("finish.COMPLETE")
    with bugs.swapped(right, right.sql):
        monkeypatch.setenv(bugs.VARIABLE, "complete waits, with times from before")
        with pytest.raises(LookupError):
            bugs.seed_from_environment()
        monkeypatch.setenv(bugs.VARIABLE, "complete without the token")
        kept = bugs.seed_from_environment()
        assert bugs.TOKEN not in bugs.statement("finish.COMPLETE").sql
        kept.close()
    assert bugs.statement("finish.COMPLETE") is right


def test_after_a_bug_the_statements_are_the_right_ones_again() -> None:
    places = sorted({edit.statement for bug in BUGS.values() for edit in bug.edits})
    right = {place: bugs.statement(place) for place in places}
    for name in BUGS:
        with seeded(name):
            changed = {place for place in places if bugs.statement(place) is not right[place]}
            assert changed == {edit.statement for edit in BUGS[name].edits}
    assert {place: bugs.statement(place) for place in places} == right
