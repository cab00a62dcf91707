"""Prefixes and schemas of every sort, from the first migration to the last downgrade, or refused at construction."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.values.errors import DefinitionError
from tests.conftest import new_database
from tests.migrations.usage import use
from tests.support import PARAMETER_LIKE

HEAD = migrations.head()
MARK = "__[POSTCOMPILE_"
LONGEST_PREFIX = 63 - len("jobs_pending_keyed")
FULL = "a" * 40
ODD = [
    "Jobs",
    "JOBS",
    "jobs",
    "select",
    "user",
    "my-schema",
    "a b",
    'x"y',
    "x;drop",
    "%s",
    PARAMETER_LIKE,
    ":p",
    "{0}",
    "\U0001f600",
    "\\'",
    "$1--/*",
]
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"schema": ""}, "is empty; leave it out"),
    ({"schema": "pg_x"}, "begins with pg_, and PostgreSQL keeps such schemas for itself"),
    ({"schema": "s" * 64}, "has 64 bytes; PostgreSQL names have at most 63"),
    ({"schema": "\U0001f600" * 16}, "has 64 bytes"),
    ({"prefix": "p" * 64}, "has 64 bytes"),
    ({"prefix": "a\0b"}, "holds a NUL character"),
    ({"schema": "a\0b"}, "holds a NUL character"),
    ({"prefix": "\ud800"}, "holds a lone surrogate"),
    ({"prefix": MARK}, "takes for a parameter"),
    ({"schema": MARK}, "takes for a parameter"),
    ({"prefix": None}, "is not a string"),
    ({"schema": 1}, "is not a string"),
]
if sa.__version__ < "2.1":
    REFUSED += [({"prefix": "%(a)s"}, "takes for a parameter"), ({"schema": "%(a)s"}, "takes for a parameter")]


@pytest.fixture(scope="module")
def shared(server: object, admin: sa.Engine) -> Iterator[sa.Engine]:
    """One database for all names, which therefore have to get along with each other."""
    with new_database(admin, "template0") as name:
        engine = sa.create_engine(server.url(name, tcp=True))  # type: ignore[attr-defined]
        yield engine
        engine.dispose()


def go_through(engine: sa.Engine, queue: Queue) -> None:
    assert migrations.apply(engine, queue) == [HEAD]
    migrations.check(engine, queue)
    use(engine, queue)
    assert migrations.revert(engine, queue) == [HEAD]
    assert migrations.current(engine, queue) is None


@pytest.mark.parametrize("name", ODD)
def test_a_name_from_the_first_migration_to_the_last(shared: sa.Engine, name: str) -> None:
    go_through(shared, Queue(name, name))
    assert not sa.inspect(shared).get_table_names(schema=name)


@pytest.mark.parametrize(
    "queue", [Queue(""), Queue("pg_x"), Queue("p" * LONGEST_PREFIX, "s" * 63), Queue("\U0001f600" * 11)], ids=repr
)
def test_names_that_only_one_of_them_may_have(shared: sa.Engine, queue: Queue) -> None:
    go_through(shared, queue)
    assert sa.inspect(shared).get_table_names() == []


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda value: ascii(value)[:40])
def test_a_name_that_cannot_be_is_refused_at_construction(options: dict[str, object], message: str) -> None:
    [(option, value)] = options.items()
    with pytest.raises(DefinitionError, match=message) as caught:
        Queue(**options)  # type: ignore[arg-type]
    assert (caught.value.option, caught.value.value) == (option, value)


def test_names_that_differ_in_their_case_alone(shared: sa.Engine) -> None:
    queues = [Queue(prefix, "case") for prefix in ("jobs", "Jobs", "JOBS")]
    know_nothing_of_each_other(shared, queues)


def test_the_longest_prefix_is_the_one_whose_names_just_fit() -> None:
    for length in range(1, LONGEST_PREFIX + 1):
        tables = Queue("p" * length).tables.metadata.tables.values()
        assert max(len(str(index.name)) for table in tables for index in table.indexes) == length + 18
    for length in range(LONGEST_PREFIX + 1, 64):
        with pytest.raises(DefinitionError, match=rf"has {length} bytes.* use at most {LONGEST_PREFIX} bytes"):
            Queue("p" * length)


def test_prefixes_with_the_same_first_forty_characters(shared: sa.Engine) -> None:
    know_nothing_of_each_other(shared, [Queue(f"{FULL}_{end}", "long") for end in "xyz"])


def know_nothing_of_each_other(engine: sa.Engine, queues: list[Queue]) -> None:
    for queue in queues:
        migrations.apply(engine, queue)
    with engine.begin() as conn:
        for count, queue in enumerate(queues, 1):
            handle = queue.define("n")
            queue.enqueue_many(conn, [handle.new()] * count)
    with engine.connect() as conn:
        assert [queue.stats(conn)["n"].pending for queue in queues] == [1, 2, 3]
    one, *others = queues
    migrations.revert(engine, one)
    for other in others:
        migrations.check(engine, other)
        migrations.revert(engine, other)


@pytest.mark.usefixtures("two_revisions")
def test_each_is_at_a_revision_of_its_own(empty: sa.Engine) -> None:
    """In schemas of their own, and beside each other in one."""
    for queues in (
        [Queue(schema="a"), Queue(schema="b"), Queue(schema="c")],
        [Queue("a_"), Queue("b_"), Queue("c_")],
    ):
        whole, older, none = queues

        def found(queues: list[Queue] = queues) -> list[str | None]:
            return [migrations.current(empty, queue) for queue in queues]

        migrations.apply(empty, whole)
        migrations.apply(empty, older, "0001")
        assert found() == ["sqlane_0002", "sqlane_0001", None]
        assert [has_extra(empty, queue) for queue in (whole, older)] == [True, False]
        migrations.apply(empty, older)
        assert found() == ["sqlane_0002", "sqlane_0002", None]
        migrations.revert(empty, whole, "0001")
        assert [has_extra(empty, queue) for queue in (whole, older)] == [False, True]
        assert migrations.revert(empty, none) == []
        migrations.revert(empty, whole)
        assert found() == [None, "sqlane_0002", None]


def has_extra(engine: sa.Engine, queue: Queue) -> bool:
    columns = sa.inspect(engine).get_columns(queue.tables.jobs.name, schema=queue.tables.schema)
    return "extra" in {column["name"] for column in columns}
