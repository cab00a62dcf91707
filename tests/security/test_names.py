"""Prefixes and schemas of any sort are refused at construction, or are quoted in every statement there is.

`SQLANE_FUZZ_NAMES=500 pytest tests/security/test_names.py` tries so many round trips, other ones each time.
"""

from __future__ import annotations

import os

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sqlane_sa import DefinitionError, Queue, migrations, store
from tests.migrations import usage
from tests.support import PARAMETER_LIKE

MORE = int(os.environ.get("SQLANE_FUZZ_NAMES", "0"))
QUIET = settings(
    deadline=None,
    database=None,
    derandomize=not MORE,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

SUFFIX = len("jobs_pending_keyed")
MARKS = ["__[POSTCOMPILE_"] if sa.__version__ >= "2.1" else ["__[POSTCOMPILE_", "%("]

PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from("\"';:%\\{}()[]$.,-/* \n\t\0\ud800\x7f\u202e\U0001f600"),
    st.sampled_from(
        ["sqlane_", "jobs", "select", "pg_", ":p", "%s", "%%", "{jobs}", "$1", "--", "/*", "*/", "';", '"."']
    ),
    st.sampled_from(["x" * 31, "é" * 20, "__[POSTCOMPILE_", PARAMETER_LIKE, "E'\\'", 'U&"\\0061"']),
)
NAMES = st.lists(PIECES, max_size=5).map("".join)


def can_be(prefix: str, schema: str | None) -> bool:
    """By what PostgreSQL's manual says of identifiers, and what SQLAlchemy takes for a parameter."""
    for name in (prefix, schema or ""):
        if any(mark in name for mark in ["\0", *MARKS]) or any("\ud800" <= char <= "\udfff" for char in name):
            return False
    if len(prefix.encode()) + SUFFIX > 63:
        return False
    return schema is None or (0 < len(schema.encode()) <= 63 and not schema.startswith("pg_"))


@given(prefix=NAMES, schema=st.none() | NAMES)
@settings(QUIET, max_examples=max(100, MORE))
def test_what_cannot_be_a_name_is_refused_at_construction(prefix: str, schema: str | None) -> None:
    try:
        Queue(prefix, schema)
    except DefinitionError as error:
        assert error.option in ("prefix", "schema")
        refused = True
    else:
        refused = False
    assert refused is not can_be(prefix, schema)


POSSIBLE = st.tuples(NAMES, st.none() | NAMES).filter(lambda place: can_be(*place))


@given(place=POSSIBLE)
@example(place=('"; DROP SCHEMA public CASCADE; --', "'; SELECT 1; --"))
@example(place=("{waits}{jobs}:p%s", '""'))
@settings(QUIET, max_examples=MORE or 6)
def test_what_is_not_refused_makes_the_full_round_trip(conn: sa.Connection, place: tuple[str, str | None]) -> None:
    """Migrated, every statement of the store run, looked at, and taken back; what was there before is still there."""
    before = relations(conn)
    queue = Queue(*place)
    if queue.tables.prefix == "sqlane_" and queue.tables.schema is None:
        return
    with conn.begin_nested() as savepoint:
        migrations.apply(conn, queue)
        migrations.check(conn, queue)
        assert len(relations(conn) - before) > 5
        usage.work(conn, queue)
        usage.look(conn, queue)
        assert len(store.health(conn, queue.tables).tables) == 5
        migrations.revert(conn, queue)
        assert relations(conn) == before
        savepoint.rollback()


def relations(conn: sa.Connection) -> set[tuple[str, str]]:
    found = conn.execute(
        sa.text(
            "SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE relkind = 'r'".replace("::", "\\:\\:")
        )
    )
    return {(schema, name) for schema, name in found if not schema.startswith("pg_")}


@given(
    start=st.text(min_size=16, max_size=63).filter(lambda text: can_be("", text)),
    ends=st.sets(st.text("ab", min_size=1), min_size=2),
)
@settings(QUIET, max_examples=20)
def test_names_that_differ_after_byte_63_alone_are_refused(start: str, ends: set[str]) -> None:
    """PostgreSQL would cut them to the same name, and two queues would share their tables."""
    filled = start + "x" * (63 - len(start.encode()))
    for end in ends:
        for place in (("sqlane_", filled + end), (filled + end, None)):
            with pytest.raises(DefinitionError, match=r"has \d+ bytes"):
                Queue(*place)


PLACES = [
    Queue("p" * 20, "s" * 43),
    Queue("p" * 21, "s" * 43),
    Queue("p" * 45, "s" * 62 + "1"),
    Queue("p" * 45, "s" * 62 + "2"),
    Queue("p" * 44, "s" * 63),
    Queue("sqlane_", "Weird Name"),
    Queue("sqlane_", None),
    Queue("sqlane_", "public"),
    Queue("a", "bc"),
    Queue("ab", "c"),
]


def test_each_place_has_a_channel_of_its_own(engine: sa.Engine) -> None:
    """C43: prefix and schema of 63, 64 and 108 bytes (120 is refused), schemas that share 62 of 63 bytes, a weird name:
    an enqueue wakes those that wait there, and nobody else."""
    with pytest.raises(DefinitionError):
        Queue("p" * 57, "s" * 63)
    for queue in PLACES:
        if queue.tables.prefix != "sqlane_" or queue.tables.schema == "Weird Name":
            migrations.apply(engine, queue)
        queue.definitions.clear()
        queue.define("n")
    assert len({queue.tables.channel for queue in PLACES}) == len(PLACES)
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as listener:
        for queue in PLACES:
            listener.execute(f'LISTEN "{queue.tables.channel}"')  # type: ignore[arg-type]
        for queue in PLACES:
            with engine.begin() as conn:
                store.fall_asleep(conn, queue.tables, worker_id="w", duration=60)
                queue.enqueue(conn, "n")
                conn.execute(sa.text("SELECT pg_notify(:channel, 'end')"), {"channel": PLACES[0].tables.channel})
                sleepers = sa.delete(queue.tables.sleepers)
                conn.execute(sleepers)
            heard = []
            for notice in listener.notifies(timeout=60):
                heard.append(notice)
                if notice.payload == "end":
                    break
            assert [notice.channel for notice in heard if not notice.payload] == [queue.tables.channel]
            assert heard[-1].payload == "end"
