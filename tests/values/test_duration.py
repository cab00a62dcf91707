import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from sqlane_sa.values.duration import MAX_SECONDS, seconds, to_ms
from sqlane_sa.values.errors import DefinitionError, InvalidJobError


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (3, 3.0), (0.25, 0.25), (timedelta(minutes=2, milliseconds=5), 120.005), (MAX_SECONDS, MAX_SECONDS)],
)
def test_seconds_takes_numbers_and_timedelta(value: object, expected: float) -> None:
    assert seconds(value, "delay") == expected


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        "3",
        b"3",
        Decimal(3),
        Fraction(3),
        3j,
        [3],
        math.nan,
        math.inf,
        -math.inf,
        -1,
        -0.001,
        timedelta(seconds=-1),
        timedelta.max,
        MAX_SECONDS + 1,
        10**400,
        -(10**400),
        10**5000,
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_seconds_refuses(value: object) -> None:
    with pytest.raises(DefinitionError, match=r"^delay=") as caught:
        seconds(value, "delay")
    assert caught.value.option == "delay"
    assert caught.value.value is value


def test_bounds() -> None:
    assert seconds(1, "lease", minimum=1, maximum=5) == 1
    with pytest.raises(DefinitionError, match="at least 1 and at most 5 s"):
        seconds(0.5, "lease", minimum=1, maximum=5)
    with pytest.raises(DefinitionError, match="more than 0 and"):
        seconds(0, "timeout", exclusive=True)


def test_the_caller_chooses_the_error() -> None:
    def invalid(message: str, option: str, value: object) -> InvalidJobError:
        return InvalidJobError(message, place=option, value=value)

    with pytest.raises(InvalidJobError) as caught:
        seconds("soon", "delay", error=invalid)
    assert caught.value.place == "delay"


@pytest.mark.parametrize(("value", "ms"), [(0, 0), (-0.0, 0), (0.0004, 0), (0.0006, 1), (1.5, 1500), (0.29, 290)])
def test_to_ms(value: float, ms: int) -> None:
    assert to_ms(value) == ms
    assert str(to_ms(value)) == str(ms)
