"""Every order of two and three sessions on one job, with barriers inside the operations.

Cancelling is no operation of the store yet, so it is not among them. CI plays the stale writes against a job that runs
again at every barrier, and a share of the rest; `python -m tests.model --permutations` plays all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.model.permutations import Case, Stage, is_idle, pairs, play_pairs, triples
from tests.model.scenes import NEW, NEW_KEYLESS, OLD, OLD_KEYLESS, ROW, ROW_KEYLESS

STALE_WRITES = {**OLD, **OLD_KEYLESS}
STALE = [pair for pair in pairs(["again"]) if pair[2] in STALE_WRITES and pair[1] not in STALE_WRITES]
OTHERS = [pair for pair in pairs() if pair not in set(STALE)]


@pytest.fixture
def stage(engine: sa.Engine) -> Iterator[Stage]:
    stage = Stage(engine)
    yield stage
    stage.close()


@pytest.mark.timeout(600)
def test_a_stale_write_at_every_barrier_of_what_is_done_to_a_job_that_runs_again(stage: Stage) -> None:
    """All writes under the old token, at each statement of each operation on the row."""
    assert {first for _, first, _ in STALE} == {*NEW, *ROW, *NEW_KEYLESS, *ROW_KEYLESS}
    assert play_pairs(stage, STALE) > 3 * len(STALE)


@pytest.mark.timeout(600)
def test_every_other_pair_of_operations_at_every_barrier(stage: Stage) -> None:
    """One in seventeen."""
    assert play_pairs(stage, OTHERS[::17]) > len(OTHERS) // 17


@pytest.mark.timeout(600)
def test_three_sessions_on_one_row(stage: Stage) -> None:
    """One order in thirteen."""
    for case in list(triples())[::13]:
        assert stage.play(case)


def test_the_barrier_is_inside_the_operation(stage: Stage) -> None:
    """A recovery is held before each of its statements; a barrier after its last one is none."""
    reached = [stage.play(Case("expired", "take over", ("old: complete",), n)) for n in range(3)]
    assert all(reached)
    assert not stage.play(Case("expired", "take over", ("old: complete",), 99))


def test_only_what_changed_nothing_is_idle() -> None:
    assert is_idle([[], False, None, (0, 0)])
    assert not is_idle([[], False, None, (0, 1)])
