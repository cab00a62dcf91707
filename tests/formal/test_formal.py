"""The right model holds, each broken one fails by the invariant that it should fail by, and the code named is there."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

from sqlane_sa import store
from sqlane_sa.statement import Statement
from tests.formal.runs import ACTIONS, BROKEN, ENDS, LIMITS, REDUNDANT, RIGHT, SAFETY, Run
from tests.formal.tlc import SPEC, check, java

ROOT = Path(__file__).parents[2]
TEXT = SPEC.read_text()
PAGE = (ROOT / "docs" / "model.md").read_text()
UPHELD = re.compile(r"\\\* Upheld by: ((?:.*\n\\\* )*?.*)\n(\w+) ==")
WRITES = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM|COPY) \{(?:jobs|mutexes)\}")

BORN = "a new job is pending, where the model begins"
NOT_MODELLED = {
    "copying.COPY_JOBS": BORN,
    "insert.INSERT_NEW": BORN,
    "insert.INSERT_KNOWN": BORN,
    "insert.INSERT_ALIKE": BORN,
    "insert_one.INSERT_ONE": BORN,
    "insert_one.INSERT_ONE_SPECIAL": BORN,
    "failure.DROP": "deletion after the retention, which is none",
    "sweep.DELETE_EXPIRED": "deletion after the retention",
    "failed.RETRY_FAILED": "somebody's wish after the end, which would begin the model anew",
    "sweep.MAKE_DUE": "moves the time of a pending job, and the model has no delays",
}

needs_java = [
    pytest.mark.skipif(java() is None, reason="java is missing; apt-get install default-jre-headless"),
    pytest.mark.timeout(600),
]


# One of each kind, in seconds: `python -m tests.formal` checks them all, and CI runs it.
FIRST = [next(run for run in RIGHT if "Lease" in run.constants), BROKEN[0]]


@pytest.mark.parametrize("run", [pytest.param(run, id=run.name, marks=needs_java) for run in FIRST])
def test_model(run: Run) -> None:
    verdict = run.check()
    assert verdict.violated == run.expected, verdict.output
    assert verdict.distinct > 0


def test_the_right_model_is_checked_for_everything() -> None:
    assert {name for run in RIGHT for name in run.checks} == {*SAFETY, ENDS} > set(ACTIONS)
    assert {name for _, name in UPHELD.findall(TEXT)} == {*SAFETY, ENDS}
    assert not any(run.broken for run in RIGHT)


def test_each_invariant_fails_somewhere() -> None:
    assert {run.expected for run in BROKEN} == {*SAFETY, ENDS}


def test_each_fault_is_put_in_and_switches_something() -> None:
    [listed] = re.findall(r"Faults == \{(.*?)\}", TEXT, re.S)
    faults = set(re.findall(r'"(\w+)"', listed))
    assert faults == {fault for run in BROKEN for fault in run.broken} == set(re.findall(r'Is\("(\w+)"\)', TEXT))


def test_the_code_that_upholds_the_invariants_is_there() -> None:
    for code, invariant in UPHELD.findall(TEXT):
        for place in re.sub(r"\n\\\* ", " ", code).split("; "):
            path, _, names = place.partition(" ")
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            assert (ROOT / path).exists() and names
            for name in names.split(", "):
                assert hasattr(module, name), f"{invariant} names {name} of {path}"


def test_the_actions_name_code_that_is_there() -> None:
    named = re.findall(r"^\\\* (?:The result is written: )?(\w+)\.(\w+)", TEXT, re.M)
    assert len(named) >= 6
    for module, name in named:
        assert hasattr(importlib.import_module(f"sqlane_sa.store.{module}"), name), f"{module}.{name}"


def written() -> set[str]:
    """The statements of the store that write jobs or mutexes, by their modules."""
    found = set()
    for info in pkgutil.iter_modules(store.__path__):
        module = importlib.import_module(f"{store.__name__}.{info.name}")
        found |= {
            f"{info.name}.{name}"
            for name, value in vars(module).items()
            if isinstance(value, Statement) and WRITES.search(value.sql) and is_own(module, name)
        }
    return found


def is_own(module: ModuleType, name: str) -> bool:
    """Not one that it imports."""
    return bool(re.search(rf"^{name} = ", Path(str(module.__file__)).read_text(), re.M))


def named() -> set[str]:
    """What the invariants name."""
    places = "; ".join(re.sub(r"\n\\\* ", " ", code) for code, _ in UPHELD.findall(TEXT)).split("; ")
    return {
        f"{Path(path).stem}.{name}"
        for path, _, names in (place.partition(" ") for place in places)
        for name in names.split(", ")
    }


def test_each_write_of_the_store_is_named() -> None:
    assert written() - named() == set(NOT_MODELLED)


def test_the_page_lists_what_is_checked() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == {*SAFETY, ENDS}
    rows = re.findall(r"^\| ([^`|]+) \| `(\w+)` \|$", PAGE, re.M)
    assert rows == [(run.name, run.expected) for run in BROKEN]
    assert all(run.name in " ".join(PAGE.split()) for run in REDUNDANT + LIMITS)


@pytest.mark.skipif(java() is None, reason="java is missing; apt-get install default-jre-headless")
def test_a_model_that_cannot_be_checked_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no verdict"):
        check("SPECIFICATION Missing")
