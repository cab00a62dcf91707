import math
import pickle
from datetime import timedelta
from typing import Any

import pytest

from sqlane_sa.values.errors import InvalidJobError
from sqlane_sa.values.job import ClaimedJob, JobLock
from sqlane_sa.values.outcome import Discard, Released, Retry, Signal, Snooze


def test_signals_carry_their_facts() -> None:
    assert Retry().delay is None
    assert Retry(timedelta(minutes=1)).delay == 60
    assert Snooze(0).delay == 0
    assert Discard("gone").reason == "gone"
    assert str(Discard("gone")) == "gone"
    assert str(Discard()) == "the handler discarded the job"
    assert "60 s" in str(Retry(60))


@pytest.mark.parametrize("signal", [Retry, Snooze])
@pytest.mark.parametrize("delay", [-1, True, "60", math.nan, math.inf, 10**400, timedelta(-1)])
def test_a_delay_that_cannot_be(signal: Any, delay: object) -> None:
    with pytest.raises(InvalidJobError) as caught:
        signal(delay)
    assert caught.value.place == "delay"


@pytest.mark.parametrize("signal", [Retry(), Retry(3), Snooze(3), Discard("x")], ids=repr)
def test_signals_cross_a_process_boundary(signal: Signal) -> None:
    assert vars(pickle.loads(pickle.dumps(signal))) == vars(signal)


def test_a_release_is_immediate_and_frees_keys_unless_told() -> None:
    assert Released() == Released(delay=0.0, linger=None)


def test_a_claim_knows_its_attempt_and_its_lock() -> None:
    names = ClaimedJob._fields
    claim = ClaimedJob(**dict.fromkeys(names) | {"id": "a", "attempts": 2, "lock_token": "t"})  # type: ignore[arg-type]
    assert claim.attempt == 3
    assert claim.lock == JobLock("a", "t")
