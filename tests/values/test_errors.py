import pickle

import pytest

from sqlane_sa.values import errors
from sqlane_sa.values.errors import (
    AttemptsExhaustedError,
    DefinitionError,
    DuplicateDefinitionError,
    HandlerExitError,
    InvalidJobError,
    JobTimeoutError,
    PayloadError,
    SchemaBehindError,
    SchemaError,
    SqlaneError,
    StalledError,
    UnknownNameError,
    shown,
)

CLASSES = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, SqlaneError)]
EXAMPLES = [
    SqlaneError("plain"),
    DefinitionError("timeout=0", option="timeout", value=0),
    DuplicateDefinitionError("mail"),
    UnknownNameError("mial", ["mail"]),
    InvalidJobError("is wrong", place="run_at", value=3),
    PayloadError("is wrong", place="payload['a']", value=3),
    StalledError(2, 3),
    JobTimeoutError(1.5),
    AttemptsExhaustedError(5, 5),
    HandlerExitError("SystemExit"),
    SchemaBehindError("behind", current=None, head="sqlane_0001"),
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_class_has_a_docstring_of_one_line(cls: type[SqlaneError]) -> None:
    assert cls.__doc__
    assert "\n" not in cls.__doc__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_cross_a_process_boundary_whole(error: SqlaneError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (DefinitionError("x"), ValueError),
        (UnknownNameError("x", []), LookupError),
        (InvalidJobError("x", place="y"), ValueError),
        (PayloadError("x", place="y"), TypeError),
        (JobTimeoutError(1), TimeoutError),
        (SchemaBehindError("x", current=None, head="y"), SchemaError),
    ],
)
def test_errors_are_caught_as_the_builtin_a_user_expects(error: Exception, builtin: type[Exception]) -> None:
    assert isinstance(error, builtin)


def test_a_place_is_put_before_the_place() -> None:
    error = PayloadError("is wrong", place="payload['a'][3]", value=7).at("jobs[400]")
    assert type(error) is PayloadError
    assert (error.place, error.value) == ("jobs[400].payload['a'][3]", 7)
    assert str(error) == "jobs[400].payload['a'][3]: is wrong"


def test_an_unknown_name_suggests_the_close_one() -> None:
    error = UnknownNameError("mail.welcom", ["mail.welcome", "report"])
    assert "did you mean 'mail.welcome'?" in str(error)
    assert "queue.job or queue.define" in str(error)
    assert error.known == ("mail.welcome", "report")


def test_an_unknown_name_lists_five_known_ones() -> None:
    text = str(UnknownNameError("zzz", [f"job{n}" for n in range(9)]))
    assert "'job0', 'job1', 'job2', 'job3', 'job4' and 4 more" in text
    assert "no names yet" in str(UnknownNameError("zzz", []))


@pytest.mark.parametrize("name", [None, 3, ["list"], "x" * 10**6, "\ud800"])
def test_any_value_can_be_an_unknown_name(name: object) -> None:
    assert len(str(UnknownNameError(name, ["mail"]))) < 500  # type: ignore[arg-type]


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "value", [10**5000, Broken(), "x" * 10**6, [["y" * 1000] * 1000] * 1000, b"z" * 10**6], ids=type
)
def test_shown_is_short_and_never_raises(value: object) -> None:
    assert len(shown(value)) <= 200
