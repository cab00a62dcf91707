"""The table, as text and as Markdown, and what is kept of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.bench import Measured, Row

HEADS = ("line", "ours", "compared with", "", "ratio", "goal", "reached")
RIGHT = (1, 3, 4)
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def cells(row: Row) -> tuple[str, ...]:
    if row.ours is None:
        return (row.title, "", "", "", "", row.goal, row.note or "not measured")
    reached = {True: "yes", False: "NO", None: ""}[row.reached]
    return (
        row.title,
        f"{number(row.ours)} {row.unit}".strip(),
        row.compared,
        number(row.theirs),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        row.goal,
        f"{reached} ({row.note})" if reached and row.note else reached or row.note,
    )


def number(value: float | None) -> str:
    """Three digits that say something."""
    if value is None:
        return ""
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100 or value == int(value)
        else f"{value:.{1 if size >= 10 else 2 if size >= 0.1 else 4}f}"
    )


def text(rows: Iterable[Row]) -> str:
    lines = [HEADS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(rows: Iterable[Row], described: Mapping[str, str]) -> str:
    """Between the two marks of docs/performance.md."""
    rules = "|".join("---:" if column in RIGHT else "---" for column in range(len(HEADS)))
    table = [f"| {' | '.join(HEADS)} |", f"|{rules}|"]
    table += [f"| {' | '.join(cells(row))} |" for row in rows]
    notes = [f"- {name}: {said}" for name, said in described.items()]
    return "\n".join([BEGIN, "", *table, "", *notes, "", END])


def save(file: Path, measured: Sequence[Measured], described: Mapping[str, str], curves: Mapping[str, Any]) -> None:
    kept = {
        "about": dict(described),
        "rows": [row._asdict() for one in measured for row in one.rows()],
        "samples": {one.line.name: one.samples for one in measured},
        "curves": dict(curves),
    }
    file.write_text(json.dumps(kept, indent=1) + "\n")


def load(file: Path) -> tuple[list[Row], dict[str, str], dict[str, Any]]:
    kept = json.loads(file.read_text())
    return [Row(**row) for row in kept["rows"]], kept["about"], kept["curves"]
