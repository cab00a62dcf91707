"""Pressure: `python -m tests.benchmarks.pressure [snapshot|readers|burst|workers|pending|all]`.

Each part has a server of its own, with its default settings (fsync on), and prints a row or two. Read the figures as
ratios within one run: machines differ, and shared ones are noisy. `--minutes 10` is how long `snapshot` holds one, at
`--rate 600` jobs a second; `--rows 10000000` the backlog of `pending`, which asks for 3 GB of disk per million;
`--jobs 20000` how many `workers` and `pending` run. Exits with an error when a job was lost.
"""

from __future__ import annotations

import argparse

from tests.benchmarks.pressure import burst, pending, readers, snapshot, workers
from tests.benchmarks.pressure.figures import header

PARTS = {
    "snapshot": snapshot.run,
    "readers": readers.run,
    "burst": burst.run,
    "workers": workers.run,
    "pending": pending.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="all", choices=[*PARTS, "all"])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the snapshot is held")
    parser.add_argument("--rate", type=float, default=600.0, help="jobs enqueued a second")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=20_000)
    options = parser.parse_args()
    header()
    for name, run in PARTS.items():
        if options.part in (name, "all"):
            run(options)


if __name__ == "__main__":
    main()
