"""A worker process for large payloads: `python large_app.py URL OPTIONS_JSON`; at its end it prints its peak memory."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import sqlalchemy as sa

from sqlane_sa import Queue, Worker

queue = Queue()


@queue.job("large")
def large(payload: str) -> None:
    assert len(payload) > 1_000_000


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    Worker(sa.create_engine(sys.argv[1]), queue, **json.loads(sys.argv[2])).run_until_idle()
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(peak.split()[1])
