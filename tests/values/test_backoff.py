import logging
import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlane_sa.values.backoff import MAX_DELAY, Backoff, delay_after
from sqlane_sa.values.errors import DefinitionError


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(base=5, factor=2, maximum=60, jitter=0)
    assert [backoff(n) for n in range(1, 7)] == [5, 10, 20, 40, 60, 60]


@given(
    st.floats(0, 1e6),
    st.floats(1, 1000),
    st.floats(0, MAX_DELAY),
    st.floats(0, 1),
    st.integers(-5, 10**6) | st.just(10**400),
)
def test_any_backoff_stays_within_its_bounds(
    base: float, factor: float, maximum: float, jitter: float, attempt: int
) -> None:
    assert 0 <= Backoff(base, factor, maximum, jitter)(attempt) <= maximum


def test_jitter_spreads_both_ways() -> None:
    delays = [Backoff(base=100, jitter=0.1)(1) for _ in range(1000)]
    assert 90 <= min(delays) < 95
    assert 105 < max(delays) <= 110


def test_it_is_a_value_and_takes_timedelta() -> None:
    assert Backoff(base=timedelta(minutes=1), maximum=timedelta(hours=2)) == Backoff(60.0, maximum=7200)
    assert hash(Backoff()) == hash(Backoff())
    with pytest.raises(AttributeError):
        Backoff().base = 3  # type: ignore[misc]


@pytest.mark.parametrize("option", ["base", "factor", "maximum", "jitter"])
@pytest.mark.parametrize("value", [None, True, "5", -1, math.nan, math.inf, 10**400, Decimal(1)], ids=repr)
def test_wrong_options(option: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=f"^{option}=") as caught:
        Backoff(**{option: value})
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("result", "delay"),
    [
        (0, 0),
        (3, 3),
        (2.5, 2.5),
        (timedelta(minutes=1), 60),
        (math.inf, MAX_DELAY),
        (10**400, MAX_DELAY),
        (timedelta.max, MAX_DELAY),
    ],
)
def test_a_function_of_the_user(result: object, delay: float, caplog: pytest.LogCaptureFixture) -> None:
    assert delay_after(lambda attempt: result, 3) == delay
    assert not caplog.records


@pytest.mark.parametrize("result", [None, math.nan, -1, -math.inf, timedelta(-1), True, "3", Decimal(3), object()])
def test_what_is_no_delay_falls_back_and_is_logged_once(result: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sqlane_sa"):
        assert 4.5 <= delay_after(lambda attempt: result, 1) <= 5.5
    assert len(caplog.records) == 1
    assert "returned" in caplog.text


def test_a_function_that_raises_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    def broken(attempt: int) -> float:
        raise ZeroDivisionError("oh")

    with caplog.at_level(logging.WARNING, "sqlane_sa"):
        assert 9 <= delay_after(broken, 2) <= 11
    assert "raised ZeroDivisionError('oh')" in caplog.text
