"""The plans of the statements that really ran, with what they cost: pages, rows, bytes of WAL. By auto_explain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

SETTINGS = {
    "log_min_duration": "0",
    "log_level": "notice",
    "log_format": "json",
    "log_analyze": "on",
    "log_buffers": "on",
    "log_wal": "on",
    "log_timing": "off",
}
SCANS = ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Tid Scan")


class Plan(NamedTuple):
    """One statement that ran. `rows` were read from tables, those that a filter left out included."""

    sql: str
    ms: float
    nodes: tuple[dict[str, Any], ...]

    @property
    def buffers(self) -> int:
        top = self.nodes[0]
        return int(top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0))

    @property
    def wal(self) -> int:
        return int(self.nodes[0].get("WAL Bytes", 0))

    @property
    def rows(self) -> float:
        return sum(_read(node) for node in self.nodes if node["Node Type"] in SCANS)

    @property
    def whole_tables(self) -> set[str]:
        """What was read from end to end."""
        return {
            node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan" and node["Actual Loops"]
        }


def _read(node: dict[str, Any]) -> float:
    left_out = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float((node["Actual Rows"] + left_out) * node["Actual Loops"])


@contextmanager
def explained(engine: sa.Engine) -> Iterator[list[Plan]]:
    """All plans of an engine of psycopg's that has no connections yet, and of workers on it, as they end. The role has
    to be a superuser, and the server's contrib modules installed."""
    plans: list[Plan] = []

    def connected(connection: Any, record: Any) -> None:
        connection.execute("LOAD 'auto_explain'")
        for name, value in SETTINGS.items():
            connection.execute(f"SET auto_explain.{name} = '{value}'")
        connection.commit()
        connection.add_notice_handler(lambda notice: _note(plans, notice.message_primary))

    sa.event.listen(engine, "connect", connected)
    try:
        yield plans
    finally:
        sa.event.remove(engine, "connect", connected)


def _note(plans: list[Plan], message: str) -> None:
    head, found, body = message.partition("plan:")
    if found and head.startswith("duration:"):
        said = json.loads(body)
        plans.append(Plan(said["Query Text"], float(head.split()[1]), tuple(_nodes(said["Plan"]))))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
