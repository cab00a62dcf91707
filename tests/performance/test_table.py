"""The table of `python -m tests.benchmarks`: what is reached, what is not, and what was not there to compare with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import report
from tests.benchmarks.bench import Figure, Goal, Line, Measured
from tests.benchmarks.lines import LINES
from tests.benchmarks.peers import NotInstalledError, other

RATE = Figure("rate", "jobs/s", goals={"peer": Goal(1.25), "missing": Goal(2)})
LINE = Line(
    "drain", "drain, {50} ahead", lambda bench: {}, [RATE, Figure("ms", "ms", "p99", {"": Goal(most=5, own=True)})]
)


@pytest.fixture
def measured() -> Measured:
    samples = {
        "ours": [{"rate": 120.0, "ms": 4.0}, {"rate": 140.0, "ms": 5.0}],
        "peer": [{"rate": 100.0}, {"rate": 100.0, "capped": 1.0}],
        "another": [{"rate": 260.0}],
    }
    return Measured(LINE, LINE.titled(20_000), samples)


def test_medians_ratios_and_goals(measured: Measured) -> None:
    assert [report.cells(row) for row in measured.rows() if row.unit == "jobs/s"] == [
        ("drain, 1,000,000 ahead", "130 jobs/s", "peer", "100", "1.30", ">= 1.25 x", "yes (stopped at the limit)"),
        ("drain, 1,000,000 ahead", "130 jobs/s", "missing", "", "", ">= 2 x", "no missing"),
        ("drain, 1,000,000 ahead", "130 jobs/s", "another", "260", "0.50", "", ""),
    ]


def test_a_goal_of_our_own_figure_needs_no_other(measured: Measured) -> None:
    row, *_ = [row for row in measured.rows() if row.unit == "ms"]
    assert (row.ours, row.goal, row.reached) == (4.5, "<= 5", True)


def test_what_was_kept_is_shown_again(measured: Measured, tmp_path: Path) -> None:
    report.save(tmp_path / "run.json", [measured], {"machine": "one"}, {})
    rows, about, _ = report.load(tmp_path / "run.json")
    assert rows == measured.rows()
    page = report.markdown(rows, about)
    assert page.startswith(report.BEGIN) and page.endswith(report.END)
    assert page.count("\n| drain") == len(rows)


def test_the_page_has_the_marks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    assert page.index(report.BEGIN) < page.index(report.END)
    assert all(f"`{name}`" in page for name in LINES)


def test_a_peer_that_is_not_there_says_why(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text('{"a": ["$NO_SUCH_HOME/python", "a.py"], "b": ["/nowhere/python", "b.py"]}')
    for name, reason in (("a", "NO_SUCH_HOME is not set"), ("b", "python is not where"), ("c", "has no c")):
        with pytest.raises(NotInstalledError, match=reason):
            other(name, tmp_path)
    with pytest.raises(NotInstalledError, match="--bench"):
        other("a", None)


def test_the_command_lists_its_lines() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--list", "--jobs", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(LINES)
