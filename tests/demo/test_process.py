"""The child processes of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlane_sa.demo.folder import Folder
from sqlane_sa.demo.process import Process


def test_one_that_ends_while_it_is_being_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look whether it runs and the signal: there is nothing left to kill, and that is no error."""
    folder = Folder(None, tmp_path)
    try:
        process = Process(["/bin/sh", "-c", ":"], None, folder)
        assert process.wait(60)
        # As a look is answered while its keeper has just been told of the end.
        monkeypatch.setattr(process._popen, "poll", lambda: None)
        process.kill()
        assert process.returncode == 0
    finally:
        folder.remove()
