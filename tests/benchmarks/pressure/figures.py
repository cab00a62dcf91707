"""Figures of a run, and the row of a table that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa


def row(part: str, done: str, jobs: int, lost: int, repeated: int, found: str) -> None:
    """One row in Markdown. What was lost ends the run with an error, after the row."""
    print(f"| {part} | {done} | {jobs:,} | {lost} | {repeated} | {found} |", flush=True)
    if lost:
        raise SystemExit(f"{part}: {lost} jobs were lost")


def header() -> None:
    print(
        "| pressure | what was done | jobs | lost | repeated | what happened |\n|---|---|---|---|---|---|", flush=True
    )


def note(text: str) -> None:
    """What belongs to the next row, apart from the table."""
    print(f"    {text}", flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share (0 to 1) of `values` lies; NaN for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else math.nan


def memory_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = (line for line in lines if line.startswith("VmRSS"))
    return int(resident.split()[1]) / 1024


def count(engine: sa.Engine, sql: str) -> int:
    """The number that a statement returns, outside any transaction."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        return int(conn.exec_driver_sql(sql).scalar_one())
