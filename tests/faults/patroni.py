"""Two servers under Patroni, which makes one of them the leader and the other its synchronous standby."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy.exc import DBAPIError

from sqlane_sa.demo.account import other_account
from tests.faults.patroni_nodes import CONTROLLER, PATIENCE, POSTGRES, Member, Node, free_ports
from tests.faults.patroni_processes import end_with_us
from tests.faults.standby import scalar
from tests.support import wait_until

PACKAGES = {
    "patroni": Path(CONTROLLER),
    "python3-pysyncobj": Path("/usr/lib/python3/dist-packages/pysyncobj"),
    "postgresql-15": POSTGRES / "postgres",
}
SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


def missing() -> list[str]:
    """The packages of Debian that this needs, and that are not installed."""
    return [package for package, path in PACKAGES.items() if not path.exists()]


class Cluster:
    """`with Cluster() as cluster:` starts two nodes and a third vote, and waits until every COMMIT is on both nodes."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            account, ports = other_account(), free_ports(7)
            votes = {name: f"127.0.0.1:{port}" for name, port in zip(("one", "two", "vote"), ports, strict=False)}
            for name, own in (("one", ports[3:5]), ("two", ports[5:]), ("vote", [])):
                member = Node(name, votes, account, own) if own else Member(name, votes, account)
                stack.callback(member.close)
                self.members.append(member)
            keeper = stack.enter_context(end_with_us(member.folder.path for member in self.members))
            stack.callback(keeper.kill)
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def nodes(self) -> tuple[Node, Node]:
        first, second = (member for member in self.members if isinstance(member, Node))
        return first, second

    def start(self) -> None:
        """Start what does not run, and wait until the cluster is whole."""
        for member in self.members:
            member.start()
        self.wait_until_whole()

    def wait_until_whole(self) -> tuple[Node, Node]:
        """Wait until there is a leader, and the other node is its synchronous standby; in this order."""
        try:
            leader, other = wait_until(self._whole, PATIENCE, "a leader with a synchronous standby")
        except AssertionError as error:
            for member in self.members:
                error.add_note(member.said())
            raise
        return leader, other

    def _whole(self) -> list[Node]:
        for member in self.members:
            member.check_alive()
        first, second = self.nodes
        leader, other = (first, second) if first.leads() else (second, first)
        if leader.roles() != {leader.name: "leader", other.name: "sync_standby"}:
            return []
        try:
            return [leader, other] if scalar(leader, SYNCHRONOUS) == 1 else []
        except DBAPIError:
            return []
