"""The functional suite behind PgBouncer in transaction mode: `python -m tests.pgbouncer [--pool-size 4] [ARGUMENT...]`.

Four connections for each database, with every test, worker and producer before them. Needs Debian's `pgbouncer`.
`tests/pgbouncer/exceptions.py` lists the tests left out, each with its reason.
Arguments are pytest's: folders or files in place of those of the suite, `-n 0`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from sqlane_sa.demo.server import Server
from tests.conftest import SETTINGS, memory_folder
from tests.pgbouncer.plugin import DIRECT
from tests.pgbouncer.pooler import PgBouncer, program

TESTS = ("tests/store", "tests/enqueue", "tests/drain", "tests/worker")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pgbouncer", description=__doc__)
    parser.add_argument("--pool-size", type=int, default=4, help="connections for each database")
    options, arguments = parser.parse_known_args()
    if program() is None:
        parser.error("there is no pgbouncer; apt-get install pgbouncer")
    with Server(fsync=False, tcp=True, settings=SETTINGS | {"max_connections": 500}, parent=memory_folder()) as server:
        direct = server.url(tcp=True)
        with PgBouncer(direct, pool_size=options.pool_size) as pooler:
            environment = os.environ | {DIRECT: direct, "SQLANE_TEST_DATABASE_URL": pooler.url(direct)}
            command = [sys.executable, "-m", "pytest", "-p", "tests.pgbouncer.plugin", *with_tests(arguments)]
            return subprocess.run(command, env=environment, check=False).returncode


def with_tests(arguments: list[str]) -> list[str]:
    """The suite's folders too, where none is given: with options alone pytest would run every test there is."""
    given = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    return arguments if given else [*arguments, *TESTS]


if __name__ == "__main__":
    sys.exit(main())
