"""A bell is heard whenever it is rung, and so is the socket beside it."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sqlane_sa.worker.bell import Bell
from tests.support import wait_until

LONG = 60.0


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_one_that_was_rung_before_is_not_waited_for(bell: Bell) -> None:
    bell.set()
    assert bell.is_set()
    assert not bell.wait(LONG)
    bell.clear()
    assert not bell.is_set()
    assert not bell.wait(0)


def test_it_ends_a_wait(bell: Bell) -> None:
    rings = 1000
    heard: list[int] = []

    def wait() -> None:
        while len(heard) < rings:
            bell.wait(LONG)
            bell.clear()
            heard.append(1)

    waiter = threading.Thread(target=wait)
    waiter.start()
    chance = random.Random(1)
    for ring in range(rings):
        bell.set()
        wait_until(lambda: len(heard) > ring)  # noqa: B023
        time.sleep(chance.choice((0, 0, 0.0001)))
    waiter.join(60)
    assert not waiter.is_alive()


def test_a_file_ends_a_wait(bell: Bell, line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    assert not bell.wait(0, near.fileno())
    threading.Timer(0.05, lambda: far.send(b"x")).start()
    assert bell.wait(LONG, near.fileno())
    assert bell.wait(LONG, near.fileno()), "nobody has read it"
    bell.set()
    assert not bell.wait(LONG, near.fileno()), "it has rung"


def test_a_ring_during_a_wait_for_a_file(bell: Bell, line: tuple[socket.socket, socket.socket]) -> None:
    near, _ = line
    threading.Timer(0.05, bell.set).start()
    assert not bell.wait(LONG, near.fileno())
    assert bell.is_set()


def test_a_wait_may_be_as_long_as_one_likes(bell: Bell) -> None:
    threading.Timer(0.05, bell.set).start()
    assert not bell.wait(1e300)


def test_one_that_nobody_waited_for_has_no_files(bell: Bell) -> None:
    bell.set()
    bell.clear()
    assert bell._pair is None


def test_a_ring_after_the_end_is_nothing(bell: Bell) -> None:
    bell.wait(0)
    bell._waited_for = True
    bell.close()
    bell.set()
