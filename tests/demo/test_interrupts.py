"""A signal is not lost, wherever it comes."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from sqlane_sa.demo import interrupts


def test_a_signal_within_a_finalizer(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Python drops what is raised there; the next look finds it, and nothing is printed."""
    monkeypatch.setattr(interrupts, "_pending", None)

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(10):
                pass  # where the handler runs

    with pytest.raises(interrupts.Interrupted, match="SIGTERM") as caught, interrupts.interruptible():
        interrupts.check()
        Finalized()
        interrupts.check()
    assert caught.value.number == signal.SIGTERM
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_while_something_is_made(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """It is raised once that is made, or has failed because the signal reached its programs too."""
    monkeypatch.setattr(interrupts, "_pending", None)
    made = []
    with pytest.raises(interrupts.Interrupted, match="SIGINT"), interrupts.interruptible():
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            made.append("whole")
            if fails:
                raise OSError("initdb was interrupted")
        made.append("never")
    assert made == ["whole"]
