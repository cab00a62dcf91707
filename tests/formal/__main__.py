"""Check the formal model and its broken variants: `python -m tests.formal [--full] [--trace] [name ...]`."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.formal.runs import FULL, RUNS, Run
from tests.formal.tlc import Verdict, java


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formal", description="Check the formal model with TLC.")
    parser.add_argument("names", nargs="*", help="only models whose name or faults contain one of these")
    parser.add_argument("--full", action="store_true", help="the large models too: minutes")
    parser.add_argument("--trace", action="store_true", help="print what TLC says, counterexamples included")
    options = parser.parse_args()
    if java() is None:
        parser.error("java is not on the PATH: TLC needs one, such as Debian's default-jre-headless")
    wanted = [run for run in RUNS + (FULL if options.full else []) if _is_wanted(run, options.names)]
    print(f"{'model':56} {'must fail':26} {'result':26} {'states':>8} {'seconds':>8}")
    with ThreadPoolExecutor(2) as pool:
        results = [_report(*result, options.trace) for result in pool.map(_timed, wanted)]
    return 0 if results and all(results) else 1


def _is_wanted(run: Run, names: list[str]) -> bool:
    return not names or any(name in text for name in names for text in (run.name, *run.broken))


def _timed(run: Run) -> tuple[Run, Verdict, float]:
    start = time.monotonic()
    return run, run.check(), time.monotonic() - start


def _report(run: Run, verdict: Verdict, seconds: float, trace: bool) -> bool:
    right = verdict.violated == run.expected
    result = ("" if right else "WRONG: ") + (f"{verdict.violated} fails" if verdict.violated else "holds")
    print(f"{run.name:56} {run.expected or '-':26} {result:26} {verdict.distinct:8} {seconds:8.1f}", flush=True)
    if trace:
        print(verdict.output)
    return right


sys.exit(main())
