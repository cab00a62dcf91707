"""The shop's customers at work: orders placed one after the other, some of which come to nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

from sqlalchemy.orm import Session

from sqlane_sa.demo.app import Customer, Mishap, Order, engine, ledger, place_order
from sqlane_sa.demo.ledger import Placed

CUSTOMERS = 50
WAREHOUSES = 8
# The last digits of the number of an order that has a mishap, of one that is rolled back, and of a gift.
MISHAPS = dict(zip((7, 17, 27, 37), map(str, Mishap), strict=True))
MISHAP_PERIOD = 50
ROLLBACK_PERIOD, ROLLBACK = 20, 13
GIFT_PERIOD, GIFT = 5, 2
NOTE_EVERY = 100


class ChangedMindError(Exception):
    """A customer turns back when all is written and nothing committed."""


def open_shop() -> None:
    with Session(engine) as session, session.begin():
        session.add_all(Customer(id=number) for number in range(CUSTOMERS))


def place_orders(count: int) -> Iterator[int]:
    """Place orders, each in a transaction of its own; yields how many were placed so far."""
    numbers = iter(range(count))
    done = 0
    while batch := list(itertools.islice(numbers, NOTE_EVERY)):
        placed: list[Placed] = []
        for number in batch:
            placed += _place(number)
            done += 1
            yield done
        ledger.note(placed)


def _place(number: int) -> list[Placed]:
    """The jobs of an order, for the ledger."""
    is_rolled_back = number % ROLLBACK_PERIOD == ROLLBACK
    with suppress(ChangedMindError), Session(engine) as session, session.begin():
        order = _new_order(number)
        jobs = place_order(session, order)
        order_id = order.id
        if is_rolled_back:
            raise ChangedMindError
    return [Placed(job.id, order_id, not is_rolled_back) for job in jobs]


def _new_order(number: int) -> Order:
    return Order(
        customer_id=number * 7 % CUSTOMERS,
        warehouse=number % WAREHOUSES,
        cents=100 + number * 37 % 9900,
        is_gift=number % GIFT_PERIOD == GIFT,
        mishap=MISHAPS.get(number % MISHAP_PERIOD),
    )
