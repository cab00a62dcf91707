"""read_payloads: values by id; one that cannot be decoded harms only its own job."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.errors import PayloadError
from tests.store.steps import add, run

VALUES = [None, {}, [], 0, "", False, True, -1.5, "null", {"a": [None, {"b": "é\U0001f600\\u0000"}]}, 10**4299, " "]


def test_every_value_comes_back_as_it_went(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [add(any_conn, queue, payload=value) for value in VALUES]
    payloads = store.read_payloads(any_conn, queue.tables, ids=[*ids, "unknown"])
    assert payloads == dict(zip(ids, VALUES, strict=True))
    assert [type(payloads[id]) for id in ids] == [type(value) for value in VALUES]


def test_nothing_asked(any_conn: sa.Connection, queue: Queue) -> None:
    assert store.read_payloads(any_conn, queue.tables, ids=[]) == {}


def test_a_payload_that_cannot_be_decoded_stands_alone(any_conn: sa.Connection, queue: Queue) -> None:
    good = add(any_conn, queue, payload="good")
    bad = [add(any_conn, queue) for _ in range(3)]
    for id, text in zip(bad, ["9" * 5000, "[" * 5000 + "]" * 5000, '{"a": ' + "1" * 5000 + "}"], strict=True):
        run(any_conn, "UPDATE sqlane_payloads SET payload = CAST(:text AS json) WHERE id = :id", text=text, id=id)
    payloads = store.read_payloads(any_conn, queue.tables, ids=[good, *bad])
    assert payloads.pop(good) == "good"
    # Python decodes the nested one as long as its stack allows.
    assert isinstance(payloads[bad[0]], PayloadError)
    assert isinstance(payloads[bad[2]], PayloadError)
    for id in bad:
        job = store.get(any_conn, queue.tables, id=id)
        assert job is not None
        assert isinstance(payloads[id], PayloadError) == (job.payload_error is not None)


def test_texts_up_to_a_size(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [add(any_conn, queue, payload="x" * size) for size in (98, 99)]
    texts = store.read_payload_texts(any_conn, queue.tables, ids, max_bytes=100)
    assert texts == {ids[0]: '"' + "x" * 98 + '"'}
    assert set(store.read_payload_texts(any_conn, queue.tables, ids)) == set(ids)


def test_the_database_refuses_a_payload_that_is_too_large(conn: sa.Connection, queue: Queue) -> None:
    """Also one that was written past the codec."""
    id = add(conn, queue)
    with pytest.raises(sa.exc.IntegrityError, match="payloads_size"):
        run(conn, "UPDATE sqlane_payloads SET payload = to_json(repeat('x', 16 * 1024 * 1024)) WHERE id = :id", id=id)
