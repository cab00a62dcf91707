"""One connection through the proxy: it counts the messages of both directions and fails at the one it is told."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from tests.faults.messages import Conversation, Message, Sender


class Act(Enum):
    CUT_BEFORE = "cut before"
    CUT_AFTER = "cut after"
    HALF_OPEN = "half-open from"
    SWALLOW_REPLIES = "no reply from"


CUT_BEFORE, CUT_AFTER, HALF_OPEN, SWALLOW_REPLIES = Act


class Fault(NamedTuple):
    """What happens at the `n`-th message (from 1) that `sender` sends.

    Cut before it, so that it is never delivered, or right after it: with RST, or else with FIN. Half-open: it and
    whatever follows in either direction is swallowed, and the sockets stay open. No reply: the same, except that the
    server still gets what the client sends.
    """

    sender: Sender
    n: int
    act: Act
    reset: bool = True

    def __str__(self) -> str:
        how = (" (RST)" if self.reset else " (FIN)") if self.act in (CUT_BEFORE, CUT_AFTER) else ""
        return f"{self.act.value} the {self.sender}'s message {self.n}{how}"


class Link:
    """Its commands may be called from any thread and have taken effect when they return."""

    def __init__(self, call: Callable[[Callable[[], object]], None], server: tuple[str, int]) -> None:
        self._call = call
        self._server = server
        self._conversation = Conversation()
        self.ends: dict[Sender, End] = {"client": End(self, "client"), "server": End(self, "server")}
        self.messages: deque[tuple[Sender, str]] = deque(maxlen=1000)
        """Sender and name of the last messages since `count`; swallowed ones too."""
        self.statements: set[str] = set()
        self.backend_pid: int | None = None
        self.fired = False
        """Whether the fault that was armed has happened."""
        self._fault: Fault | None = None
        self._left = 0
        self._swallowed: set[Sender] = set()
        self._delay = 0.0

    @property
    def closed(self) -> bool:
        """Whether both ends are."""
        return all(end.closed for end in self.ends.values())

    def has_sent(self, sql: str) -> bool:
        """Whether the client has sent a statement with this text in it."""
        return any(sql in statement for statement in tuple(self.statements))

    def count(self) -> None:
        """Begin the list of messages anew."""
        self._call(self.messages.clear)

    def arm(self, fault: Fault) -> None:
        """Let the fault happen, counted from now."""
        self._call(partial(self.count_to, fault))

    def cut(self, *, reset: bool = True) -> None:
        self._call(partial(self._cut, reset))

    def black_hole(self) -> None:
        """Swallow everything from now on; the sockets stay open, whatever the other side does with its own."""
        self._call(partial(self.swallow, "client", "server"))

    def swallow_replies(self) -> None:
        """The server gets what the client sends, and the client hears nothing."""
        self._call(partial(self.swallow, "server"))

    def delay(self, seconds: float) -> None:
        """Deliver what is sent from now on that much later."""
        self._delay = seconds

    # From here on in the proxy's thread.

    def count_to(self, fault: Fault) -> None:
        self._fault, self._left, self.fired = fault, fault.n, False

    def swallow(self, *senders: Sender) -> None:
        self._swallowed.update(senders)

    def opened(self, sender: Sender) -> None:
        if sender == "client":
            loop = asyncio.get_running_loop()
            self._connecting = loop.create_task(self._connect(loop))
        else:
            self.ends["server"].flush()

    def received(self, sender: Sender, data: bytes) -> None:
        for message in self._conversation.feed(sender, data):
            self._note(sender, message)
            fault = self._due(sender)
            if fault is not None and fault.act is not CUT_AFTER:
                self._strike(fault)
            if sender not in self._swallowed:
                self._deliver(sender, message.data)
            if fault is not None and fault.act is CUT_AFTER:
                self._strike(fault)

    def lost(self, sender: Sender) -> None:
        """One side has closed: so does the other, unless the news is swallowed as well."""
        if sender not in self._swallowed:
            asyncio.get_running_loop().call_later(self._delay, partial(self._other(sender).end, reset=False))

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await loop.create_connection(lambda: self.ends["server"], *self._server)
        except OSError:
            self._cut(reset=True)

    def _note(self, sender: Sender, message: Message) -> None:
        self.messages.append((sender, message.name))
        if sender == "client" and message.statement is not None:
            self.statements.add(message.statement)
        self.backend_pid = message.backend_pid or self.backend_pid

    def _due(self, sender: Sender) -> Fault | None:
        if self._fault is None or self._fault.sender != sender:
            return None
        self._left -= 1
        if self._left > 0:
            return None
        fault, self._fault = self._fault, None
        return fault

    def _strike(self, fault: Fault) -> None:
        self.fired = True
        if fault.act is HALF_OPEN:
            self.swallow("client", "server")
        elif fault.act is SWALLOW_REPLIES:
            self.swallow("server")
        else:
            self._cut(fault.reset)

    def _deliver(self, sender: Sender, data: bytes) -> None:
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._other(sender).deliver_next)
            self._other(sender).late.append(data)
        else:
            self._other(sender).deliver(data)

    def _other(self, sender: Sender) -> End:
        return self.ends["server" if sender == "client" else "client"]

    def _cut(self, reset: bool) -> None:
        self.swallow("client", "server")
        for end in self.ends.values():
            end.end(reset=reset)


class End(asyncio.Protocol):
    """The socket to the client, or the one to the server."""

    def __init__(self, link: Link, sender: Sender) -> None:
        self._link = link
        self._sender: Sender = sender
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self.late: deque[bytes] = deque()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.closed:
            transport.abort()
        else:
            self._link.opened(self._sender)

    def data_received(self, data: bytes) -> None:
        self._link.received(self._sender, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._link.lost(self._sender)

    def deliver(self, data: bytes) -> None:
        """What comes before the connection to the server stands waits for it."""
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def deliver_next(self) -> None:
        self.deliver(self.late.popleft())

    def flush(self) -> None:
        for data in self._early:
            self.deliver(data)
        self._early.clear()

    def end(self, *, reset: bool) -> None:
        if self._transport is None:
            self.closed = True
        elif self.closed:
            return
        elif reset:
            linger_not = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)
            self._transport.abort()
        else:
            self._transport.close()
