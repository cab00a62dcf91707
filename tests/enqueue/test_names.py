"""Which name a job gets, and that every kind of handler can be enqueued by it."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import DefinitionError, DuplicateDefinitionError, Queue
from sqlane_sa.testing import drain


class Mailer:
    """A handler with attributes that a handle has as well."""

    def __init__(self, got: list[Any]) -> None:
        self.got = got
        self.name = "the mailer's"
        self.queue = "the mailer's"

    def __call__(self, payload: Any) -> None:
        self.got.append(payload)

    def send(self, payload: Any) -> None:
        self.got.append(payload)


def send_all(got: list[Any], payload: Any) -> None:
    got.append(payload)


Make = Callable[[list[Any]], Callable[[Any], None]]
NAMELESS: dict[str, Make] = {"partial": lambda got: functools.partial(send_all, got), "object": Mailer}


@pytest.mark.parametrize("kind", NAMELESS)
def test_what_has_no_name_is_asked_for_one(queue: Queue, kind: str) -> None:
    with pytest.raises(DefinitionError, match=r"give the job a name.*@queue\.job\(") as caught:
        queue.job()(NAMELESS[kind]([]))
    assert caught.value.option == "name"
    assert queue.definitions == {}


@pytest.mark.parametrize("kind", NAMELESS)
def test_and_works_with_one(conn: sa.Connection, queue: Queue, kind: str) -> None:
    got: list[Any] = []
    handle = queue.job("mail")(NAMELESS[kind](got))
    assert (handle.name, handle.queue, handle.definition.name) == ("mail", queue, "mail")
    handle("called")
    handle.enqueue(conn, "enqueued")
    assert drain(conn, queue).completed == 1
    assert got == ["called", "enqueued"]


def test_a_method_has_its_functions_name(conn: sa.Connection, queue: Queue) -> None:
    got: list[Any] = []
    handle = queue.job()(Mailer(got).send)
    assert handle.name == "send"
    handle.enqueue(conn, 1)
    drain(conn, queue)
    assert got == [1]


def test_a_function_is_still_itself(queue: Queue) -> None:
    @queue.job("mail", max_attempts=2)
    def send(payload: int) -> int:
        """Sends."""
        return payload + 1

    assert (send(1), send.__name__, send.__doc__, send.name) == (2, "send", "Sends.", "mail")


@pytest.mark.parametrize("handler", [None, 5, "text"])
def test_what_cannot_be_called(queue: Queue, handler: Any) -> None:
    for decorate in (queue.job(), queue.job("n")):
        with pytest.raises(DefinitionError):
            decorate(handler)


def test_a_name_is_defined_once(queue: Queue) -> None:
    queue.define("n")
    with pytest.raises(DuplicateDefinitionError, match="'n' is already defined"):
        queue.job("n")(lambda payload: None)


def test_a_producer_needs_no_handler(conn: sa.Connection, queue: Queue) -> None:
    handle = queue.define("n", priority=3)
    job = queue.get(conn, handle.enqueue(conn, 1).id)
    assert job is not None
    assert (job.name, job.payload, job.priority) == ("n", 1, 3)
    with pytest.raises(DefinitionError, match="without a handler"):
        handle(1)
