import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlane_sa.values import payload as codec
from sqlane_sa.values.errors import PayloadError
from sqlane_sa.values.payload import MAX_BYTES, MAX_DEPTH, decode, encode

Point = namedtuple("Point", "x y")


class Color(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


class Kind(StrEnum):
    A = "a"


class Text(str):
    pass


class Half(float, Enum):
    HALF = 0.5


@dataclass
class Order:
    id: int


def nested(depth: int, leaf: Any = None) -> Any:
    for n in range(depth):
        leaf = {"a": leaf} if n % 2 else [leaf]
    return leaf


def refused(value: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        encode(value)
    str(caught.value).encode()
    assert len(str(caught.value)) < 2000
    return caught.value


def characters() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def storable() -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    leaves = st.none() | st.booleans() | numbers | characters()
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(characters(), inner))


@given(storable())
def test_what_goes_in_comes_back_equal(value: Any) -> None:
    text = encode(value)
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert decode(text) == value


@given(
    st.recursive(
        st.none() | st.text(st.characters()) | st.floats() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    )
)
def test_anything_is_either_storable_or_refused(value: Any) -> None:
    try:
        text = encode(value)
    except PayloadError as error:
        assert error.place.startswith("payload")
    else:
        assert "\\u0000" not in text.replace("\\\\", "")
        assert decode(text.encode().decode()) == value


@pytest.mark.parametrize("value", [None, {}, [], 0, "", False, 0.0, -0.0, True, "\\u0000", 10**4299, 1e308, 5e-324])
def test_edge_values_come_back(value: Any) -> None:
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, (2,)), "[1,[2]]"),
        (Point(1, "a"), '[1,"a"]'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (defaultdict(list, a=[1]), '{"a":[1]}'),
        (Counter("aab"), '{"a":2,"b":1}'),
        ({Text("k"): Text("v")}, '{"k":"v"}'),
        ({"ü": "😀\n"}, '{"ü":"😀\\n"}'),
        (nested(3, True), '[{"a":[true]}]'),
    ],
)
def test_stored_as(value: object, text: str) -> None:
    assert encode(value) == text


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (datetime.now(UTC), ".isoformat()"),
        (date.today(), ".isoformat()"),
        (timedelta(1), ".total_seconds()"),
        (uuid4(), "str(...)"),
        (Decimal("1.5"), "str(...)"),
        (b"x", "base64"),
        ({1, 2}, "list(...)"),
        (frozenset("a"), "list(...)"),
        ((n for n in "ab"), "list(...)"),
        (deque([1]), "list(...)"),
        ({}.keys(), "list(...)"),
        (Order(1), "dataclasses.asdict"),
        (Color.RED, ".value"),
        (Level.LOW, ".value"),
        (Kind.A, ".value"),
        (Half.HALF, ".value"),
        (object(), "str(...)"),
        (len, "str(...)"),
        (1j, "str(...)"),
        (math.nan, "None or a str"),
        (-math.inf, "None or a str"),
        ("a\0b", "NUL"),
        (Text("a\0b"), "NUL"),
        ("\ud800", "surrogate"),
        (Text("é\udfff"), "surrogate"),
        (10**4300, "4,300 digits"),
        (-(10**5000), "4,300 digits"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refused_with_its_path_and_a_way_out(value: object, hint: str) -> None:
    for payload, place in [
        (value, "payload"),
        ({"ok": [1, {"x": "y"}], "a": [0, 1, 2, value, Color.RED]}, "payload['a'][3]"),
        ([[], {}, ({"k": value},)], "payload[2][0]['k']"),
    ]:
        error = refused(payload)
        assert error.place == place
        assert hint in str(error)


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1,), Kind.A, Level.LOW, "a\0", "\ud800", b"k"], ids=repr)
def test_keys_that_json_would_change_or_postgresql_refuse(key: Any) -> None:
    error = refused({"a": [{"1": "b", key: "a"}]})
    assert error.place.startswith("payload['a'][0][")
    assert error.value == key


@pytest.mark.parametrize("value", [1, 1.5, "a", None, True, {}, {"user_id": 7, "kind": "welcome", "at": None}])
def test_the_short_way_serves_the_usual(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_Walk", None)
    assert json.loads(encode(value)) == value


def test_depth() -> None:
    assert decode(encode(nested(MAX_DEPTH, 1))) == nested(MAX_DEPTH, 1)
    error = refused(nested(MAX_DEPTH + 1))
    assert "deeper than 200" in str(error)
    assert error.place.endswith("...")
    refused(nested(100_000))


def test_a_payload_that_holds_itself() -> None:
    ring: dict[str, Any] = {"name": "ring"}
    ring["children"] = [ring]
    assert "holds itself" in str(refused(ring))


def test_size_is_counted_in_bytes() -> None:
    assert len(encode("x" * (MAX_BYTES - 2))) == MAX_BYTES
    assert "16 MiB" in str(refused("x" * (MAX_BYTES - 1)))
    assert "16 MiB" in str(refused("é" * (MAX_BYTES // 2)))
    assert "16 MiB" in str(refused({"k" * MAX_BYTES: 1}))


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 300_000_000,
        lambda: ["é" * 10**6] * 300,
        lambda: [0] * 100_000_000,
        lambda: [Text("é" * 10**6)] * 10**6,
        lambda: [10**4000] * 10**6,
        lambda: {"a": {"b": ["x" * 10**6] * 10**6}},
    ],
    ids=["string", "strings", "list", "subclass", "integers", "inner"],
)
def test_a_huge_payload_is_refused_before_it_is_encoded(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "_encode", None)
    assert "16 MiB" in str(refused(make()))


def test_a_few_objects_referenced_exponentially_often_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 2**20)
    value: Any = []
    for _ in range(50):
        value = [value] * 10
    assert "1 MiB" in str(refused(value))


class Hostile(dict):  # type: ignore[type-arg]
    def __init__(self, error: Exception) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyError(1), RecursionError(), UnicodeError(), OverflowError()])
def test_only_payload_errors_leave(error: Exception) -> None:
    assert refused([Hostile(error)]).__cause__ is error


@pytest.mark.parametrize(
    "text",
    ["", "{", "nul", '"\n"', "1" * 5000, "[" * 100_000, '{"a":[' + "9" * 5000 + "]}", None],
    ids=["empty", "open", "word", "control", "digits", "deep", "inner digits", "none"],
)
def test_text_that_cannot_be_read_back(text: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        decode(text)
    assert caught.value.place == "payload"
    assert len(str(caught.value)) < 500


def test_surrogate_escapes_come_through() -> None:
    assert decode(r'"\ud800"') == "\ud800"
