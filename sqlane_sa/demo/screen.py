"""What the demo shows: live bars on a terminal that has rich, plain lines everywhere else."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlane_sa.demo.promises import Verdict

HEADINGS = ("promised", "measured by SQL", "kept")


STARTING = "the workers are starting; orders are placed meanwhile"


class Progress(NamedTuple):
    """Orders placed of all that will be; jobs ended of those that are there so far."""

    placed: int
    orders: int
    ended: int
    jobs: int


class Screen:
    """Plain lines, one for the progress each second."""

    interval = 1.0

    def __init__(self) -> None:
        self._shown_at = time.monotonic()
        self._shown: Progress | None = None

    def say(self, line: str = "") -> None:
        print(line, flush=True)

    def show(self, progress: Progress, *, final: bool = False) -> None:
        """At most once in `interval` seconds, and the last state in any case."""
        now = time.monotonic()
        if final or now - self._shown_at >= self.interval:
            self._shown_at = now
            self._draw(progress, final)

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        rows = [HEADINGS, *((verdict.promise, verdict.measured, _mark(verdict)) for verdict in verdicts)]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        for promise, measured, mark in rows:
            self.say(f"{promise:<{widths[0]}}  {measured:<{widths[1]}}  {mark}")

    def close(self) -> None:
        """Leave the terminal as it was; safe to repeat."""

    def _draw(self, progress: Progress, final: bool) -> None:
        if progress == self._shown or not (progress.ended or self._shown is None or final):
            return
        self._shown = progress
        placed, orders, ended, jobs = progress
        if not (ended or final):
            self.say(STARTING)
            return
        self.say(f"{placed:,} of {orders:,} orders placed, {ended:,} of {jobs:,} jobs ended")


class RichScreen(Screen):
    """Two bars and a table."""

    interval = 0.1

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            # Not to the edge: the ^C of a terminal would begin a new line there, which nothing takes back.
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._placed = self._bars.add_task("orders placed", total=None)
        self._ended = self._bars.add_task("workers start", total=None)
        self._started = False

    def say(self, line: str = "") -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for heading in HEADINGS:
            table.add_column(heading, no_wrap=heading == HEADINGS[-1])
        for verdict in verdicts:
            style = "green" if verdict.kept else "bold red"
            table.add_row(verdict.promise, verdict.measured, f"[{style}]{_mark(verdict)}[/]")
        self._console.print(table)

    def close(self) -> None:
        if self._started:
            self._bars.stop()
            self._started = False

    def _draw(self, progress: Progress, final: bool) -> None:
        if not self._started:
            self._bars.start()
            self._started = True
        self._bars.update(self._placed, completed=progress.placed, total=progress.orders)
        if progress.ended:
            self._bars.update(self._ended, description="jobs ended")
        self._bars.update(self._ended, completed=progress.ended, total=progress.jobs)
        if final:
            self.close()


def new_screen() -> Screen:
    return RichScreen() if sys.stdout.isatty() and importlib.util.find_spec("rich") else Screen()


def _mark(verdict: Verdict) -> str:
    return "yes" if verdict.kept else "NO"
