import itertools
from collections.abc import Iterator
from enum import Enum

import pytest

from sqlane_sa.values.errors import InvalidJobError
from sqlane_sa.values.text import KEY_CHARS, check_keys, check_text


class Name(str, Enum):  # noqa: UP042 - older than StrEnum, and with another str()
    MAIL = "mail.welcome"


def check(value: object) -> str:
    return check_text(value, "id", max_chars=10, what="an id")


@pytest.mark.parametrize("value", ["a", "ä" * 10, "😀" * 10, " ", "'; --", "a\nb"])
def test_text_passes(value: str) -> None:
    assert check(value) == value


def test_a_string_enum_becomes_a_plain_string() -> None:
    text = check_text(Name.MAIL, "name", max_chars=255, what="a job name")
    assert type(text) is str
    assert text == "mail.welcome"


@pytest.mark.parametrize("value", [None, 3, b"a", "", "a" * 11, "a\0b", "\ud800", "a\udc80", ["a"]])
def test_text_is_refused_at_its_place(value: object) -> None:
    with pytest.raises(InvalidJobError, match=r"^id: .* an? id") as caught:
        check(value)
    assert caught.value.place == "id"
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (None, None),
        ([], None),
        ("user:1", ("user:1",)),
        (["b", "a", "b"], ("a", "b")),
        ({"b", "a"}, ("a", "b")),
        (iter(["x"]), ("x",)),
        (["é", "z", "Z", "😀", "\uffff"], ("Z", "z", "é", "\uffff", "😀")),
        (["k" * KEY_CHARS], ("k" * KEY_CHARS,)),
        ([f"k{n % 100}" for n in range(1000)], tuple(sorted(f"k{n}" for n in range(100)))),
    ],
)
def test_keys(keys: object, expected: tuple[str, ...] | None) -> None:
    assert check_keys(keys, "mutex_keys") == expected
    assert expected is None or sorted(expected, key=str.encode) == list(expected)


@pytest.mark.parametrize("keys", [b"a", {"a": 1}, 3, "", object(), (f"k{n}" for n in itertools.count())])
def test_what_is_no_set_of_keys(keys: object) -> None:
    with pytest.raises(InvalidJobError) as caught:
        check_keys(keys, "mutex_keys")
    assert caught.value.place == "mutex_keys"


@pytest.mark.parametrize("distinct", [1, 100])
def test_the_same_keys_without_an_end(distinct: int) -> None:
    with pytest.raises(InvalidJobError, match="at most 100 mutex keys"):
        check_keys((f"k{n % distinct}" for n in itertools.count()), "mutex_keys")


@pytest.mark.parametrize("key", [None, 7, "", "a\0", "\ud800", "k" * (KEY_CHARS + 1), b"a"])
def test_the_place_of_a_wrong_key(key: object) -> None:
    with pytest.raises(InvalidJobError) as caught:
        check_keys(["a", "b", key], "mutex_keys")
    assert caught.value.place == "mutex_keys[2]"


def test_errors_of_a_generator_pass_through() -> None:
    def keys() -> Iterator[str]:
        yield "a"
        raise KeyError("user_id")

    with pytest.raises(KeyError):
        check_keys(keys(), "mutex_keys")
