"""The lines of the table, a family to a module."""

from __future__ import annotations

from tests.benchmarks.bench import Line
from tests.benchmarks.lines import backlog, drains, enqueues, isolation, keys, looks, process, snapshots, writers

LINES: dict[str, Line] = {
    line.name: line
    for family in (enqueues, drains, isolation, looks, backlog, snapshots, writers, keys, process)
    for line in family.LINES
}
