"""What goes over the wire between a program and the server, counted: whatever library sent it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple

from tests.faults.messages import Message, Sender
from tests.faults.proxy import Proxy

CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


class Sent(NamedTuple):
    """`statements` are those that do something: neither BEGIN nor COMMIT. A statement outside of BEGIN and COMMIT is a
    transaction too. `round_trips` are the waits for an answer to whatever was sent together."""

    statements: int
    transactions: int
    round_trips: int


class Wire(Proxy):
    """A proxy that counts, all its connections together; `url` leads through it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._counts: Counter[str] = Counter()

    @property
    def sent(self) -> Sent:
        """Since the beginning, or since `clear`."""
        control = sum(self._counts[word] for word in CONTROL)
        return Sent(
            self._counts["Query"] + self._counts["Execute"] - control,
            self._counts["ended"],
            self._counts["ReadyForQuery"],
        )

    def clear(self) -> None:
        self._call(self._counts.clear)

    def _link(self) -> asyncio.Protocol:
        end = super()._link()
        link = self._links[-1]
        note = link._note
        done = False  # something, since this connection was last outside a transaction

        def counted(sender: Sender, message: Message) -> None:
            nonlocal done
            note(sender, message)
            self._count(message)
            if message.name == "CommandComplete":
                done = True
            if message.name == "ReadyForQuery" and message.body == b"I":
                self._counts["ended"] += done
                done = False

        link._note = counted  # type: ignore[method-assign]
        return end

    def _count(self, message: Message) -> None:
        self._counts[message.name] += 1
        word = (message.statement or "").partition(" ")[0]  # in a Parse, of what is executed once
        if word in CONTROL:
            self._counts[word] += 1
