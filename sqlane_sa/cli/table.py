"""Tables on stdout: with rich on a terminal that has it, plain columns otherwise."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click

from sqlane_sa.values.text import printable

Row = Sequence[str]
MAX_NOTE = 500
MIN_WIDTH = 20
INDENT = "    "


def show_table(headings: Row, rows: Sequence[Row]) -> None:
    """The first column is text, the others are figures."""
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        _show_rich(headings, shown)
    else:
        _show_plain(headings, shown)


def show_notes(headings: Row, rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Plain columns, and beneath each row a text: in one line for a program, and wrapped for a terminal."""
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else None
    lines = _lines(headings, [[printable(cell) for cell in row] for row in rows], texts=2)
    click.secho(next(lines), bold=True)
    for line, note in zip(lines, notes, strict=True):
        click.echo(line)
        for part in _wrapped(_cut(printable(note[:MAX_NOTE])), width):
            click.echo(INDENT + part)


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width - len(INDENT), MIN_WIDTH), break_on_hyphens=False)


def _cut(text: str) -> str:
    limit = MAX_NOTE - len(INDENT)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _show_plain(headings: Row, rows: Sequence[Row]) -> None:
    for line in _lines(headings, rows, texts=1):
        click.echo(line)


def _lines(headings: Row, rows: Sequence[Row], texts: int) -> Iterator[str]:
    """The first `texts` columns to the left, the others are figures."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = [
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _show_rich(headings: Row, rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Two columns apart, as in plain: with more, the widest of our tables does not fit into 80.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in headings:
        figures = heading != headings[0]
        table.add_column(heading, justify="right" if figures else "left", overflow="fold", no_wrap=figures)
    for row in rows:
        # Text, for a name may look like markup.
        table.add_row(*map(Text, row))
    Console().print(table)
