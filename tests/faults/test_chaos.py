"""A short chaos run; longer ones are a command: `python -m tests.faults.chaos --help`.

With SQLANE_CHAOS_BUGS=1 also the negative controls: runs with a bug in the workers, each of which must fail. That the
bugs reach what the workers run is for `test_seeded.py`, always.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.faults import faults
from tests.faults.chaos import command, main, run
from tests.faults.seeded import BUGS
from tests.faults.verdict import Verdict
from tests.faults.world import Plan

FINDERS = {
    "token_check_removed": {"stale writes accepted"},
    "stale_check_removed": {"stale writes accepted"},
    "polling_removed": {"left undone", "idle with due jobs"},
    "line_ignored": {"order inversions per key"},
}

SOON = {"stale_check_removed": 15.0}
"""Seconds that are enough; 60 for the others."""


def broken(verdict: Verdict) -> set[str]:
    return {one.name for one in (*verdict.counts, *verdict.recoveries) if not one.kept}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_run_keeps_every_promise(tmp_path: Path) -> None:
    plan = Plan(seconds=8.0, seed=1, jobs=1200, workers=2)
    verdict = run(plan, tmp_path)
    assert verdict.kept, f"{broken(verdict)}; {verdict}; again: {command(plan)}"
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    done = {line["kind"] for line in history if line["event"] == "fault" and line["problem"] is None}
    assert done & {fault.kind for fault in faults.PROCESSES}
    assert done & {fault.kind for fault in faults.DATABASES}
    assert verdict.figures["completed"] > 100
    assert json.loads((tmp_path / "verdict.json").read_text())["kept"]


@pytest.mark.skipif("SQLANE_CHAOS_BUGS" not in os.environ, reason="takes minutes; set SQLANE_CHAOS_BUGS=1")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(bug: str, tmp_path: Path) -> None:
    only = ("SIGSTOP past the lease",) if bug == "token_check_removed" else ("table locked", "kill -9 worker")
    seconds = SOON.get(bug, 60.0)
    verdict = run(Plan(seconds, seed=1, jobs=int(200 * seconds), workers=3, bug=bug, only=only), tmp_path)
    assert broken(verdict) & FINDERS[bug], verdict


def test_a_run_needs_a_folder_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What another run left would be taken for this one's."""
    (tmp_path / "stop").touch()
    with pytest.raises(SystemExit):
        main(["--keep", str(tmp_path)])
    assert "is not empty" in capsys.readouterr().err
