"""Prefixes and schemas of every sort: each statement is rendered for them, and they never meet in one database."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations, store
from tests.store.steps import add, candidates, claim
from tests.support import PARAMETER_LIKE

ODD = [
    "Jobs_",
    "JOBS_",
    "select",
    "a b ",
    'x"y',
    "x;drop",
    "it's",
    "%s",
    PARAMETER_LIKE,
    "%%",
    ":p",
    "a::b",
    ":",
    "\\:p",
    "a\\",
    "{0}",
    "{jobs}",
    "{payloads}",
    "{waits}{sleepers}",
    "pg_x",
    "$1",
    "\U0001f600",
    "ü",
    "--",
    "/*",
    "",
]


@pytest.mark.parametrize("odd", ODD)
def test_a_prefix_and_a_schema_may_hold_anything(shared_conn: sa.Connection, odd: str) -> None:
    # PostgreSQL keeps the names that begin with pg_ for itself.
    schema = odd if odd and not odd.startswith("pg_") else None
    if schema:
        shared_conn.execute(sa.schema.CreateSchema(schema))
    queue = Queue(odd, schema)
    migrations.apply(shared_conn, queue)
    go_round(shared_conn, queue)


def go_round(conn: sa.Connection, queue: Queue) -> None:
    """Once through every table."""
    tables = queue.tables
    store.fall_asleep(conn, tables, worker_id="w", duration=60)
    keyed, plain, known = (
        add(conn, queue, **options) for options in ({"mutex_keys": ["k"]}, {}, {"id": "known", "delay": 9})
    )
    assert store.make_due(conn, tables, names=["n"]) == 1
    assert [name for name, _ in store.probe(conn, tables)] == ["n"]
    assert set(candidates(conn, queue)) == {keyed, plain, known}
    claimed = claim(conn, queue, keyed, plain, known)
    assert store.renew_leases(conn, tables, jobs=claimed, lease=60)
    assert len(store.complete(conn, tables, jobs=claimed)) == 3
    assert store.delete_expired(conn, tables, limit=10) == 0
    assert store.sweep_mutexes(conn, tables, limit=10) == (0, 0)
    assert store.sweep_waits(conn, tables, limit=10).deleted == 0
    assert store.stats(conn, tables) == {}


def test_with_every_style_of_parameters(any_conn: sa.Connection) -> None:
    queue = Queue("%s:p{0}" + PARAMETER_LIKE, 'x"y:z%')
    any_conn.execute(sa.schema.CreateSchema('x"y:z%'))
    queue.metadata.create_all(any_conn)
    go_round(any_conn, queue)


def test_two_queues_in_one_database_know_nothing_of_each_other(shared_conn: sa.Connection) -> None:
    one, two = Queue(), Queue("other_")
    migrations.apply(shared_conn, two)
    add(shared_conn, one, mutex_keys=["k"])
    id = add(shared_conn, two, mutex_keys=["k"])
    assert claim(shared_conn, two, *candidates(shared_conn, two))[0].id == id
    assert len(candidates(shared_conn, one)) == 1, "the same key in another queue holds nobody up"
