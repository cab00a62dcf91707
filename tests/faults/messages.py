"""The bytes of PostgreSQL's protocol 3, cut into messages: typed ones, and those at the start that have no type."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

Sender = Literal["client", "server"]

# The code in the place of a protocol version, and what such a first message is.
_REQUESTS = {80877102: "CancelRequest", 80877103: "SSLRequest", 80877104: "GSSENCRequest"}
_NEGOTIATIONS = ("SSLRequest", "GSSENCRequest")

_NAMES: dict[Sender, dict[bytes, str]] = {
    "client": {
        b"B": "Bind",
        b"C": "Close",
        b"D": "Describe",
        b"E": "Execute",
        b"H": "Flush",
        b"P": "Parse",
        b"Q": "Query",
        b"S": "Sync",
        b"X": "Terminate",
        b"c": "CopyDone",
        b"d": "CopyData",
        b"f": "CopyFail",
        b"p": "Password",
    },
    "server": {
        b"1": "ParseComplete",
        b"2": "BindComplete",
        b"3": "CloseComplete",
        b"A": "NotificationResponse",
        b"C": "CommandComplete",
        b"D": "DataRow",
        b"E": "ErrorResponse",
        b"G": "CopyInResponse",
        b"K": "BackendKeyData",
        b"N": "NoticeResponse",
        b"R": "Authentication",
        b"S": "ParameterStatus",
        b"T": "RowDescription",
        b"Z": "ReadyForQuery",
        b"n": "NoData",
        b"t": "ParameterDescription",
    },
}


class Message(NamedTuple):
    """One whole message: `data` are its bytes as they were sent."""

    name: str
    data: bytes

    @property
    def body(self) -> bytes:
        return self.data[5:]

    @property
    def statement(self) -> str | None:
        """The SQL of a Query or a Parse."""
        if self.name == "Query":
            return self.body.partition(b"\0")[0].decode()
        if self.name == "Parse":
            return self.body.split(b"\0", 2)[1].decode()
        return None

    @property
    def backend_pid(self) -> int | None:
        return int.from_bytes(self.body[:4]) if self.name == "BackendKeyData" else None


class Conversation:
    """Both directions of one connection: what a byte of the server means depends on what the client asked before."""

    def __init__(self) -> None:
        self._rest: dict[Sender, bytes] = {"client": b"", "server": b""}
        self._started = False
        self._negotiating = False

    def feed(self, sender: Sender, data: bytes) -> Iterator[Message]:
        """The messages that are whole with this data; the rest waits. Raises `ValueError` for an encrypted session."""
        self._rest[sender] += data
        while (message := self._next(sender)) is not None:
            self._rest[sender] = self._rest[sender][len(message.data) :]
            yield message

    def _next(self, sender: Sender) -> Message | None:
        rest = self._rest[sender]
        if sender == "server" and self._negotiating and rest:
            return self._answer(rest[:1])
        if sender == "client" and not self._started:
            return self._first(rest)
        if len(rest) < 5:
            return None
        length = 1 + int.from_bytes(rest[1:5])
        name = _NAMES[sender].get(rest[:1], f"message {rest[:1]!r}")
        return Message(name, rest[:length]) if len(rest) >= length else None

    def _first(self, rest: bytes) -> Message | None:
        if len(rest) < 8:
            return None
        length, code = struct.unpack("!ii", rest[:8])
        if len(rest) < length:
            return None
        name = _REQUESTS.get(code, "Startup")
        self._negotiating = name in _NEGOTIATIONS
        self._started = not self._negotiating
        return Message(name, rest[:length])

    def _answer(self, answer: bytes) -> Message:
        if answer != b"N":
            raise ValueError(f"the server answered {answer!r} to a request for encryption; only plain ones are read")
        self._negotiating = False
        return Message("Refusal", answer)
