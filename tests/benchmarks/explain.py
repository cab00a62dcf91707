"""The plans of the statements that really ran, with the pages and rows they read. By auto_explain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_level": "notice",
    "auto_explain.log_format": "json",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
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
def explained(url: str) -> Iterator[tuple[sa.Engine, list[Plan]]]:
    """An engine of psycopg's, and the plans of whatever runs on it, as it ends. The role has to be a superuser, and the
    server's contrib modules installed."""
    plans: list[Plan] = []
    # At the start of the session: a LOAD and its SETs would be statements among those that are looked at.
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    engine = sa.create_engine(url, connect_args={"options": options})

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.add_notice_handler(lambda notice: _note(plans, notice.message_primary))

    try:
        yield engine, plans
    finally:
        engine.dispose()


def _note(plans: list[Plan], message: str) -> None:
    head, found, body = message.partition("plan:")
    if found and head.startswith("duration:"):
        said = json.loads(body)
        plans.append(Plan(said["Query Text"], float(head.split()[1]), tuple(_nodes(said["Plan"]))))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
