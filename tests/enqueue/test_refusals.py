"""What cannot be stored is refused with its place, before any SQL: the caller's transaction goes on."""

import dataclasses
import enum
import functools
import json
import math
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sqlane_sa import InvalidJobError, PayloadError, Queue, SqlaneError, UnknownNameError
from sqlane_sa.testing import drain
from tests.enqueue.business import Order, seen, sql_sent
from tests.support import with_driver


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = "red"


class Text(enum.StrEnum):
    RED = "red"


PAYLOADS: list[tuple[Any, str]] = [
    ({"a": "x\0y"}, "payload['a']"),
    ({"a\0": 1}, "payload['a\\x00']"),
    ({"a": [{"b": ["fine", "\0"]}]}, "payload['a'][0]['b'][1]"),
    ("\ud800", "payload"),
    (["\udc00"], "payload[0]"),
    ("\udc00\ud800", "payload"),
    ({"\ud800": 1}, "payload['\\ud800']"),
    (math.nan, "payload"),
    ([1.5, math.inf], "payload[1]"),
    ({"a": {"b": -math.inf}}, "payload['a']['b']"),
    (Decimal("NaN"), "payload"),
    ({1: 2}, "payload[1]"),
    ({None: 2}, "payload[None]"),
    ({"a": {True: 2}}, "payload['a'][True]"),
    ({"when": datetime(2030, 1, 1, tzinfo=UTC)}, "payload['when']"),
    (date(2030, 1, 1), "payload"),
    (timedelta(1), "payload"),
    (uuid.UUID(int=1), "payload"),
    (Decimal("1.5"), "payload"),
    (b"bytes", "payload"),
    ({1, 2}, "payload"),
    (Point(1), "payload"),
    ([Colour.RED], "payload[0]"),
    ([Text.RED], "payload[0]"),
    (Order(number=1), "payload"),
    ((i for i in range(3)), "payload"),
    (object(), "payload"),
    ("x" * (16 * 1024 * 1024 + 1), "payload"),
    (functools.reduce(lambda inner, _: [inner], range(5000), []), "payload" + "[0]" * 10 + "..."),
]


class BrokenZone(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        raise RuntimeError("no zone")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"run_at": datetime(2030, 1, 1)}, "run_at"),
    ({"run_at": "2030-01-01T00:00:00Z"}, "run_at"),
    ({"run_at": date(2030, 1, 1)}, "run_at"),
    ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "run_at"),
    ({"run_at": datetime(2030, 1, 1, tzinfo=BrokenZone())}, "run_at"),
    ({"run_at": Silent()}, "run_at"),
    ({"delay": math.nan}, "delay"),
    ({"delay": math.inf}, "delay"),
    ({"delay": -1}, "delay"),
    ({"delay": timedelta(seconds=-1)}, "delay"),
    ({"delay": "5"}, "delay"),
    ({"priority": 1.5}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": 32768}, "priority"),
    ({"priority": Silent()}, "priority"),
    ({"priority": 10**5000}, "priority"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": Silent()}, "max_attempts"),
    ({"max_attempts": 100_001}, "max_attempts"),
    ({"mutex_keys": ["ok", "k\0"]}, "mutex_keys[1]"),
    ({"mutex_keys": ["\ud800"]}, "mutex_keys[0]"),
    ({"mutex_keys": [""]}, "mutex_keys[0]"),
    ({"mutex_keys": [1]}, "mutex_keys[0]"),
    ({"mutex_keys": ["k" * 513]}, "mutex_keys[0]"),
    ({"mutex_keys": [str(i) for i in range(101)]}, "mutex_keys"),
    ({"mutex_keys": 5}, "mutex_keys"),
    ({"id": ""}, "id"),
    ({"id": "a\0"}, "id"),
    ({"id": "\udc00"}, "id"),
    ({"id": 5}, "id"),
    ({"id": "x" * 129}, "id"),
]


@pytest.fixture
def usable(engine: sa.Engine) -> Iterator[Callable[[], Session]]:
    """A session with a business row that is to be committed whatever happens to the job."""
    with Session(engine) as session:
        session.add(Order(number=1))
        yield lambda: session
        session.commit()
    assert seen(engine) == (1, 0, 0, 0)


def refusal(engine: sa.Engine, error: type[SqlaneError], enqueue: Callable[[], object]) -> Any:
    """The error, after no SQL."""
    with sql_sent(engine) as sent, pytest.raises(error) as caught:
        enqueue()
    assert sent == []
    return caught.value


def test_payloads(engine: sa.Engine, queue: Queue, usable: Callable[[], Session]) -> None:
    """I100 to I104, and a payload too large or nested 5,000 deep."""
    queue.define("n")
    session = usable()
    for payload, place in PAYLOADS:
        error = refusal(engine, PayloadError, lambda payload=payload: queue.enqueue(session, "n", payload))
        assert error.place == place
        assert str(error).startswith(f"{place}: ")
        assert len(str(error)) < 500
        assert isinstance(error, ValueError) and isinstance(error, TypeError)


def test_options(engine: sa.Engine, queue: Queue, usable: Callable[[], Session]) -> None:
    queue.define("n")
    session = usable()
    for options, place in OPTIONS:
        error = refusal(engine, InvalidJobError, lambda options=options: queue.enqueue(session, "n", **options))
        assert error.place == place, options
        assert str(error).startswith(f"{place}: ")


def test_what_is_no_time_or_no_job_is_named_by_its_value(engine: sa.Engine, queue: Queue) -> None:
    queue.define("n")
    aware = "give an aware datetime, for example datetime.now(UTC)"
    with Session(engine) as session:
        ways: list[tuple[Callable[[], object], str]] = [
            (
                lambda: queue.enqueue(session, "n", run_at=date(2030, 1, 1)),
                f"{date(2030, 1, 1)!r} is no datetime; {aware}",
            ),
            (lambda: queue.enqueue(session, "n", run_at="2030"), f"'2030' is no datetime; {aware}"),
            (lambda: queue.enqueue_many(session, [{"i": 1}]), "{'i': 1} is no NewJob; make it with queue.new(...)"),
            (lambda: queue.enqueue_many(session, 5), "5 is no list of jobs; give an iterable of queue.new(...)"),
        ]
        for way, said in ways:
            error = refusal(engine, InvalidJobError, way)
            assert str(error) == f"{error.place}: {said}"


@pytest.mark.parametrize("name", ["mail.welcom", "a\0", "\ud800", "", None, 5, ["mail.welcome"]])
def test_unknown_names(engine: sa.Engine, queue: Queue, usable: Callable[[], Session], name: Any) -> None:
    queue.define("mail.welcome")
    error = refusal(engine, UnknownNameError, lambda: queue.enqueue(usable(), name))
    assert (error.name, error.known) == (name, ("mail.welcome",))
    assert "mail.welcome" in str(error)
    assert ("a name is a string" in str(error)) == (not isinstance(name, str))


def test_options_that_do_not_exist(engine: sa.Engine, queue: Queue, usable: Callable[[], Session]) -> None:
    queue.define("n")
    with sql_sent(engine) as sent, pytest.raises(TypeError, match="delai"):
        queue.enqueue(usable(), "n", delai=5)
    assert sent == []


def test_keys_of_a_function_that_raises(engine: sa.Engine, queue: Queue, usable: Callable[[], Session]) -> None:
    queue.define("n", mutex_keys=lambda payload: payload["user"])
    error = refusal(engine, InvalidJobError, lambda: queue.enqueue(usable(), "n", {}))
    assert error.place == "mutex_keys"
    assert isinstance(error.__cause__, KeyError)


@pytest.fixture
def process_in_nepal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_naive_time_means_nothing_in_any_zone(
    engine: sa.Engine, queue: Queue, process_in_nepal: None, zone: str
) -> None:
    """H87: one by one, in bulk and by the handle alike."""
    handle = queue.define("n")
    naive = datetime(2030, 1, 1)
    with Session(engine) as session:
        session.execute(sa.text("SELECT set_config('TimeZone', :zone, false)"), {"zone": zone})
        ways = (
            lambda: queue.enqueue(session, "n", run_at=naive),
            lambda: handle.enqueue(session, run_at=naive),
            lambda: queue.enqueue_many(session, (queue.new("n", run_at=naive) for _ in range(1))),
        )
        for way in ways:
            assert "naive" in str(refusal(engine, InvalidJobError, way))


@pytest.mark.parametrize("serializer", [lambda value: b"{}", lambda value: "null", json.dumps])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_the_engines_serializer_changes_nothing(
    database_url: str, queue: Queue, serializer: Callable[[Any], Any], driver: str
) -> None:
    """I102: one that returns bytes, one that turns NaN into null."""
    queue.define("n")
    own = sa.create_engine(
        with_driver(database_url, driver), json_serializer=serializer, json_deserializer=lambda text: "theirs"
    )
    with own.connect() as conn:
        job = queue.enqueue(conn, "n", {"a": [1.5, None, "é"]})
        found = queue.get(conn, job.id)
        assert found is not None
        assert found.payload == {"a": [1.5, None, "é"]}
        refusal(own, PayloadError, lambda: queue.enqueue(conn, "n", {"a": math.nan}))
    own.dispose()


def test_the_inline_mode_refuses_the_same(conn: sa.Connection, queue: Queue) -> None:
    """I105: drain runs what was really stored."""
    got: list[Any] = []
    queue.job("n")(got.append)
    for payload in (datetime(2030, 1, 1, tzinfo=UTC), {1: 2}):
        with pytest.raises(PayloadError):
            queue.enqueue(conn, "n", payload)
    queue.enqueue(conn, "n", {"pair": (1, 2)})
    drain(conn, queue)
    assert got == [{"pair": [1, 2]}]


@pytest.mark.parametrize("copy", [False, True])
def test_tables_that_are_not_there(engine: sa.Engine, copy: bool) -> None:
    """The error of the database in its few lines, without the statement, and what to do."""
    queue = Queue(prefix="elsewhere_")
    queue.define("n")
    with engine.begin() as conn, pytest.raises(sa.exc.ProgrammingError, match="elsewhere_jobs") as caught:
        queue.enqueue_many(conn, [queue.new("n")], copy=copy)
    (note,) = caught.value.__notes__
    shown = traceback.format_exception_only(caught.value)
    assert len("".join(shown).splitlines()) <= 6 and shown[-1].strip() == note
    assert note.startswith(f"the tables 'elsewhere_*' are not in the database {engine.url.database!r}")
    assert "`alembic upgrade head`" in note and "`sqlane migrate --prefix elsewhere_`" in note


def test_a_table_that_a_trigger_misses_is_not_the_queues(engine: sa.Engine, queue: Queue) -> None:
    queue.define("n")
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO missing VALUES (1); END $$;"
            "CREATE TRIGGER audit BEFORE INSERT ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION audit()"
        )
    with engine.begin() as conn, pytest.raises(sa.exc.ProgrammingError, match=r'"missing"[^$]*\[SQL: ') as caught:
        queue.enqueue(conn, "n")
    assert not hasattr(caught.value, "__notes__")
