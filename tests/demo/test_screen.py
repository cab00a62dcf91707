"""What the demo shows while its workers load, which takes some seconds: once, that they do."""

from __future__ import annotations

import pytest

from sqlane_sa.demo.screen import STARTING, Progress, RichScreen, Screen


def test_no_line_after_the_other_says_that_nothing_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Screen, "interval", 0.0)
    shown = Screen()
    for progress in (
        Progress(10, 90, 0, 30),
        Progress(20, 90, 0, 60),
        Progress(30, 90, 5, 90),
        Progress(40, 90, 9, 120),
    ):
        shown.show(progress)
    assert capsys.readouterr().out.splitlines() == [
        STARTING,
        "30 of 90 orders placed, 5 of 90 jobs ended",
        "40 of 90 orders placed, 9 of 120 jobs ended",
    ]


def test_the_end_is_shown_though_nothing_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Screen()
    shown.show(Progress(90, 90, 0, 270), final=True)
    assert capsys.readouterr().out == "90 of 90 orders placed, 0 of 270 jobs ended\n"


def test_the_bar_says_it_too() -> None:
    pytest.importorskip("rich")
    shown = RichScreen()
    try:
        said = []
        for ended in (0, 0, 5):
            shown._draw(Progress(10, 90, ended, 30), False)
            said.append(shown._bars.tasks[1].description)
    finally:
        shown.close()
    assert said == ["workers start", "workers start", "jobs ended"]
    assert len(said[0]) == len(shown._bars.tasks[0].description), "the column stays where it is"
