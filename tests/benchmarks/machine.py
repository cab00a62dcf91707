"""What a table was measured on: versions, settings, the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.bench import Bench

PACKAGES = ("sqlane_sa", "SQLAlchemy", "psycopg")


def described(bench: Bench, rounds: int) -> dict[str, str]:
    settings = ", ".join(f"{name}={value}" for name, value in bench.ground.settings().items())
    found = {
        "run": f"{bench.jobs:,} jobs, medians of {rounds} rounds, sides in turn within a round",
        "ours": ", ".join(f"{name} {version(name)}" for name in PACKAGES) + f", Python {platform.python_version()}",
        "PostgreSQL": f"{bench.ground.ask('SHOW server_version')}: {settings}",
        "machine": f"{os.cpu_count()} x {_cpu()}, {_memory_gb():.0f} GB, {platform.system()} {platform.release()}",
    }
    peers = {
        peer.label: f"{peer.info['name']} {peer.info['version']}: {peer.info['settings']}" for peer in bench.peers()
    }
    return found | peers | {name: f"skipped: {reason}" for name, reason in bench.missing.items()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
