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
