"""Tables on stdout: with rich on a terminal that has it, plain columns otherwise."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

import click

from sqlane_sa.values.text import printable

Row = Sequence[str]


def show_table(headings: Row, rows: Sequence[Row]) -> None:
    """The first column is text, the others are figures."""
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        _show_rich(headings, shown)
    else:
        _show_plain(headings, shown)


def _show_plain(headings: Row, rows: Sequence[Row]) -> None:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        first, *figures = row
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True))]
        click.echo("  ".join(cells).rstrip())


def _show_rich(headings: Row, rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        figures = heading != headings[0]
        table.add_column(heading, justify="right" if figures else "left", overflow="fold", no_wrap=figures)
    for row in rows:
        # Text, for a name may look like markup.
        table.add_row(*map(Text, row))
    Console().print(table)
