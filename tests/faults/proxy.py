"""A TCP proxy before a PostgreSQL server that counts the messages of both directions and fails at the one it is told.

with Proxy(database_url) as proxy:
    engine = sa.create_engine(proxy.url)
    ...
    proxy.find("LISTEN").black_hole()                      # one connection, by what its client has sent
    proxy.link_of(conn).arm(Fault("server", 3, CUT_BEFORE))  # at the 3rd message from now
    proxy.cut()                                            # all connections
    proxy.stop(); ...; proxy.start()                       # refused meanwhile, at the same port after it
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import sqlalchemy as sa

from tests.faults.link import CUT_AFTER, CUT_BEFORE, HALF_OPEN, SWALLOW_REPLIES, Fault, Link
from tests.support import wait_until

__all__ = ["CUT_AFTER", "CUT_BEFORE", "HALF_OPEN", "SWALLOW_REPLIES", "Fault", "Link", "Proxy"]

T = TypeVar("T")


class Proxy:
    """Listens on a port of its own on 127.0.0.1; all sockets are served by one thread, until the block ends.

    `url` of the server is a SQLAlchemy URL with host and port. Call it from any thread: each command has taken effect
    when it returns.
    """

    def __init__(self, url: str) -> None:
        self._server = sa.make_url(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._links: list[Link] = []
        self._next_fault: Fault | None = None
        self._holed = False
        self.port = 0
        self.accepted = 0
        """How many connections came so far."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        asyncio.run_coroutine_threadsafe(_finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return self.url_to(self._server.database)

    def url_to(self, database: str | None) -> str:
        """The URL of a database of the server, through the proxy."""
        at = self._server.set(host="127.0.0.1", port=self.port, database=database)
        return at.render_as_string(hide_password=False)

    @property
    def links(self) -> list[Link]:
        """The connections that are open at either side, in the order they came."""
        self._links = [link for link in self._links if not link.closed]
        return list(self._links)

    def find(self, sql: str) -> Link:
        """The newest connection whose client has sent a statement with this text; waits until there is one."""
        return wait_until(lambda: self._found(sql), message=f"a connection that sent {sql!r}")

    def link_of(self, conn: sa.Connection) -> Link:
        """The link under a connection of psycopg."""
        driver = conn.connection.driver_connection
        assert driver is not None
        pid = driver.info.backend_pid
        return next(link for link in self.links if link.backend_pid == pid)

    def arm_next(self, fault: Fault) -> None:
        """Arm the fault in the next connection that comes, counted from its first message."""
        self._next_fault = fault

    def cut(self, *, reset: bool = True) -> None:
        """Cut all connections, with RST or with FIN; new ones work."""
        for link in self.links:
            link.cut(reset=reset)

    def black_hole(self) -> None:
        """Swallow everything in all connections and, until `heal`, in new ones; the sockets stay open."""
        self._holed = True
        for link in self.links:
            link.black_hole()

    def heal(self) -> None:
        """Let new connections work again. What was swallowed is lost, and so are the connections it was lost in."""
        self._holed = False

    def stop(self) -> None:
        """Refuse new connections and cut those there are."""
        self._call(self._stop_listening)
        self.cut()

    def start(self) -> None:
        """Accept connections, after `stop` at the same port."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def _found(self, sql: str) -> Link | None:
        return next((link for link in reversed(self.links) if link.has_sent(sql)), None)

    def _call(self, command: Callable[[], object]) -> None:
        async def call() -> None:
            command()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(20)

    async def _listen(self) -> None:
        self._listener = await self._loop.create_server(self._link, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._listener.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _link(self) -> asyncio.Protocol:
        assert self._server.host is not None
        link = Link(self._call, (self._server.host, self._server.port or 5432))
        if self._holed:
            link.swallow("client", "server")
        if self._next_fault is not None:
            link.count_to(self._next_fault)
            self._next_fault = None
        self._links.append(link)
        self.accepted += 1
        return link.ends["client"]


async def _finish() -> None:
    """Cancel what still connects."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
