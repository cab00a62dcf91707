"""A small shop on sqlane_sa, much as an application of yours would look.

`sqlane demo` places orders in it while two processes run `sqlane worker sqlane_sa.demo.app:queue`. The one thing that a
real shop has no use for is the ledger, which measures the runs, and `Mishap`, which says what shall go wrong.
"""

from __future__ import annotations

import asyncio
import os
from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, MetaData, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sqlane_sa import Backoff, Discard, JobContext, Queue, Retry, Snooze
from sqlane_sa.demo.ledger import Ledger
from sqlane_sa.values.job import Enqueued

SCHEMA = os.environ.get("SQLANE_DEMO_SCHEMA", "sqlane_demo")

engine = create_engine(os.environ.get("SQLANE_DATABASE_URL", "postgresql+psycopg://"))
queue = Queue(schema=SCHEMA)
ledger = Ledger(engine, SCHEMA)

Payload = dict[str, Any]


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)


class Mishap(StrEnum):
    """What goes wrong with an order."""

    CARD_DECLINED = "card declined"
    BANK_UNREACHABLE = "bank unreachable"
    PRINTER_HANGS = "printer hangs"
    MAIL_DELAYED = "mail delayed"


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    spent_cents: Mapped[int] = mapped_column(default=0)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    warehouse: Mapped[int]
    cents: Mapped[int]
    is_gift: Mapped[bool] = mapped_column(default=False)
    mishap: Mapped[str | None]
    status: Mapped[str] = mapped_column(default="placed")

    customer: Mapped[Customer] = relationship()


class Charge(Base):
    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), index=True)
    cents: Mapped[int]


def place_order(session: Session, order: Order) -> list[Enqueued]:
    """The order and its jobs, in the caller's transaction: all of it comes to be, or nothing."""
    session.add(order)
    session.flush()
    payload = {"order": order.id, "customer": order.customer_id, "warehouse": order.warehouse}
    jobs = [charge.new(payload), pack.new(payload), confirm.new({"order": order.id, "mishap": order.mishap})]
    if order.is_gift:
        jobs.append(print_card.new(payload))
    return queue.enqueue_many(session, jobs)


@queue.job(
    "order.charge",
    transactional=True,
    backoff=Backoff(base=0.2),
    failure_job="order.refuse",
    mutex_keys=lambda payload: f"customer:{payload['customer']}",
)
@ledger.measured
def charge(payload: Payload, ctx: JobContext) -> None:
    """In the transaction that completes the job: the money is taken exactly once, however often this is tried."""
    order = ctx.session.get_one(Order, payload["order"])
    if order.mishap == Mishap.CARD_DECLINED:
        raise Discard("the bank declined the card")
    # Read, added to and written back: it is the key that keeps another charge of the customer from coming between.
    order.customer.spent_cents += order.cents
    order.status = "charged"
    ctx.session.add(Charge(order_id=order.id, cents=order.cents))
    ctx.session.flush()
    if order.mishap == Mishap.BANK_UNREACHABLE and ctx.attempt == 1:
        raise ConnectionError("the bank did not answer")


@queue.job("order.refuse", transactional=True)
def refuse(failed: Payload, ctx: JobContext) -> None:
    """The failure job of `charge`: enqueued in the transaction in which that failed, with its payload and error."""
    order = ctx.session.get_one(Order, failed["payload"]["order"])
    order.status = "refused"


@queue.job(
    "order.pack",
    mutex_keys=lambda payload: [f"customer:{payload['customer']}", f"warehouse:{payload['warehouse']}"],
)
@ledger.measured
def pack(payload: Payload, ctx: JobContext) -> None:
    """One order at a time in each warehouse, and in the order in which each customer placed them."""
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, payload["order"])
        if order.status == "placed":
            raise Snooze(0.2)  # neither charged nor refused yet; looking again is no failed attempt
        if order.status == "charged":
            order.status = "packed"


@queue.job(
    "order.print_card",
    timeout=1.0,
    backoff=Backoff(base=0.2),
    mutex_keys=lambda payload: f"printer:{payload['warehouse']}",
)
@ledger.measured
def print_card(payload: Payload, ctx: JobContext) -> None:
    """A gift's card. The printer may hang: the handler is told to stop, and keeps the printer until it has."""
    with Session(engine) as session:
        order = session.get_one(Order, payload["order"])
    if order.mishap == Mishap.PRINTER_HANGS and ctx.attempt == 1:
        ctx.cancelled.wait(30)


@queue.job("order.confirm")
async def confirm(payload: Payload, ctx: JobContext) -> None:
    """Coroutines run beside each other in one event loop."""
    if payload["mishap"] == Mishap.MAIL_DELAYED and ctx.attempt == 1:
        raise Retry(delay=0.2)
    await asyncio.sleep(0.01)
