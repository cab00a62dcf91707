"""The queue that `sqlane worker MODULE:QUEUE` names, and the ways in which it names none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sqlane_sa.cli.loading import load_queue
from sqlane_sa.cli.problems import Problem
from tests.cli.conftest import Sqlane, problem

App = Callable[..., None]
EXAMPLE = "for example app.jobs:queue"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("app", f"'app' does not name a queue; write module:attribute, {EXAMPLE}"),
        ("app:", f"'app:' does not name a queue; write module:attribute, {EXAMPLE}"),
        (":queue", f"':queue' does not name a queue; write module:attribute, {EXAMPLE}"),
        ("", f"'' does not name a queue; write module:attribute, {EXAMPLE}"),
        ("app:queue:more", f"'app:queue:more' does not name a queue; write module:attribute, {EXAMPLE}"),
        ("my-app:queue", f"'my-app:queue' does not name a queue; write module:attribute, {EXAMPLE}"),
        (".app:queue", f"'.app:queue' does not name a queue; write module:attribute, {EXAMPLE}"),
        ("shop/jobs.py:queue", "'shop/jobs.py' is a path; name the module in Python's way: shop.jobs:queue"),
        ("./shop/jobs:queue", "'./shop/jobs' is a path; name the module in Python's way: shop.jobs:queue"),
        ("jobs.py", "'jobs.py' is a path; name the module in Python's way: jobs:queue"),
        ("app:que", "the module 'app' (app.py) has no 'que'; did you mean app:queue?"),
        ("app:queue.deep", "the module 'app' (app.py) has no 'queue.deep'; did you mean app:queue?"),
        ("app:note", "app:note is no Queue but a JobHandle; did you mean app:queue?"),
        ("app:Queue", "app:Queue is no Queue but the class Queue; did you mean app:queue?"),
        ("json:dumps", f"json:dumps is no Queue but a function; name a Queue(), {EXAMPLE}"),
    ],
)
def test_paths(within: Sqlane, app: App, path: str, said: str) -> None:
    app()
    assert problem(within("worker", path, "--url", "postgresql://nobody.asks.this.host/d")) == said


@pytest.mark.parametrize("missing", ["nowhere", "nowhere.jobs", "app.jobs"])
def test_no_module(sqlane: Sqlane, app: App, tmp_path: Path, missing: str) -> None:
    app()
    said = problem(sqlane("worker", f"{missing}:queue"))
    named = missing if missing.startswith("app") else "nowhere"
    assert said.startswith(f"there is no module {named!r} in {tmp_path} or the installed packages; run the command in")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "importing broken failed at broken.py:2: ZeroDivisionError: division by zero"),
        ("import not_installed", "importing broken failed at broken.py:2: ModuleNotFoundError: No module named"),
        ("def (", "importing broken failed at broken.py:2: SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "importing broken failed at broken.py:2: SystemExit: 3"),
        ("import json; json.loads('')", "importing broken failed at broken.py:2: json.decoder.JSONDecodeError: "),
        ("raise ValueError('two\\nlines')", "importing broken failed at broken.py:2: ValueError: two lines ("),
        ("raise ValueError()", "importing broken failed at broken.py:2: ValueError"),
        ("from sqlane_sa import nothing", "importing broken failed at broken.py:2: ImportError: cannot import name"),
    ],
)
def test_a_module_that_raises(within: Sqlane, tmp_path: Path, code: str, said: str) -> None:
    """The place is the last line of the user's own."""
    (tmp_path / "broken.py").write_text("#\n" + code)
    answer = problem(within("worker", "broken:queue"))
    assert answer.startswith(said)
    assert answer.endswith("(SQLANE_TRACEBACK=1 shows the whole traceback)")


def test_the_whole_traceback_on_demand(sqlane: Sqlane, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    answer = sqlane("worker", "broken:queue", SQLANE_TRACEBACK="1")
    assert answer.code == 1
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("sqlane: importing broken failed at broken.py:1")


def test_interrupting_an_import_is_no_problem_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stopped.py").write_text("raise KeyboardInterrupt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        load_queue("stopped:queue")


def test_the_current_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a script that lies there, whatever is installed under the name."""
    (tmp_path / "sqlane_shadow.py").write_text("queue = None")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Problem, match=r"sqlane_shadow:queue is no Queue but a NoneType"):
        load_queue("sqlane_shadow:queue")
