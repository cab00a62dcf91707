"""A test process that hangs: it ends with the stacks of its threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STUCK = """
import threading
import pytest

@pytest.fixture
def stuck():
    yield
    threading.Event().wait()

@pytest.mark.timeout(1)
def test_hangs(stuck):
    threading.Event().wait()
"""
CONFTEST = """
from tests import hangs

hangs.AFTER_A_TIMEOUT = 1.0

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(hangs.HangWatch(config))
"""


def test_the_end_of_a_fixture_that_hangs_after_a_timeout(tmp_path: Path) -> None:
    (tmp_path / "test_stuck.py").write_text(STUCK)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    options = ["-n", "1", "--max-worker-restart", "0", "-o", "timeout=60", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path],
        capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert run.returncode == 1
    assert "crashed while running" in run.stdout and "Failed: Timeout" in run.stdout
    assert "in stuck" in run.stderr
