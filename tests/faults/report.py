"""The summary of a chaos run, for a terminal."""

from __future__ import annotations

import statistics

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.faults.verdict import Verdict
from tests.faults.world import Plan

KEPT = Text("✓", style="green")
BROKEN = Text("✗", style="bold red")
ALLOWED = Text("·", style="dim")


def print_report(plan: Plan, verdict: Verdict, seconds: float, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    figures = verdict.figures
    bug = f", with the bug [bold]{plan.bug}[/]" if plan.bug else ""
    console.print(
        f"\n[bold]{figures['jobs']:,} jobs[/], {plan.workers} workers, {plan.seconds / 60:g} min of faults "
        f"({seconds:.0f} s in all), seed {plan.seed}{bug}"
    )
    console.print(
        f"[dim]{figures['completed']:,} completed, {figures['failed for good']:,} failed for good; "
        f"{figures['claims']:,} claims, {figures['retries']:,} retries, {figures['releases']:,} releases, "
        f"{figures['stalls']:,} stalls; {figures['repeated']:,} jobs started more than once[/]\n"
    )
    console.print(_counts(verdict))
    console.print(_faults(verdict))
    kept = verdict.kept
    console.print("[bold green]Every promise was kept.[/]" if kept else "[bold red]A promise was broken.[/]")


def _counts(verdict: Verdict) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("count")
    table.add_column("found", justify="right")
    table.add_column("what it is")
    for one in verdict.counts:
        mark = ALLOWED if one.allowed else KEPT if one.kept else BROKEN
        table.add_row(mark, one.name, f"{one.value:,}", Text(one.meaning, style="dim"))
        for example in one.examples:
            table.add_row("", "", "", Text(example, style="red", overflow="fold"))
    for recovery in verdict.recoveries:
        bound = f"the longest; at most {recovery.bound:.1f} s"
        mark = KEPT if recovery.kept else BROKEN
        table.add_row(mark, recovery.name, f"{recovery.longest:.1f} s", Text(bound, style="dim"))
        if not recovery.kept:
            table.add_row("", "", "", Text(str(recovery.job_id), style="red"))
    return table


def _faults(verdict: Verdict) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("fault")
    table.add_column("times", justify="right")
    table.add_column("next claim, median", justify="right")
    table.add_column("longest", justify="right")
    for kind, seconds in sorted(verdict.after.items()):
        table.add_row(kind, str(len(seconds)), f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s")
    return table
