"""The models that are checked: the right one in several sizes, and the broken ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.formal.tlc import Verdict, check

BASE = Path(__file__).with_name("Lifecycle.cfg").read_text()
[_CHECKED] = re.findall(r"^INVARIANTS (.*?)^SYMMETRY", BASE, re.M | re.S)
SAFETY = tuple(name for name in _CHECKED.split() if name != "PROPERTIES")
"""All that the right model is checked for, but EveryJobEnds."""
ACTIONS = ("TerminalIsFinal", "LeaseIsRespected")
ENDS = "EveryJobEnds"

SMALL = {"Workers": "{w1, w2}"}
ALONE = {"Keyed": "{j1}"}
ORPHAN = {"OrphanAtStart": "TRUE"}
RELEASES = {"MaxReleases": "1"}
ONE_ATTEMPT = {"MaxAttempts": "1"}


class Run(NamedTuple):
    """One run of TLC: constants that differ from Lifecycle.cfg, faults put in, what is checked, and what must fail."""

    name: str
    constants: dict[str, str] = {}  # noqa: RUF012
    broken: tuple[str, ...] = ()
    checks: tuple[str, ...] = SAFETY
    expected: str | None = None

    @property
    def fair(self) -> bool:
        return ENDS in self.checks

    def config(self) -> str:
        values = self.constants | {"Broken": "{" + ", ".join(f'"{fault}"' for fault in self.broken) + "}"}
        constants = BASE[BASE.index("CONSTANTS") : BASE.index("SPECIFICATION")]
        for name, value in values.items():
            constants, replaced = re.subn(rf"^( +{name} =).*", rf"\1 {value}", constants, flags=re.M)
            assert replaced == 1, name
        invariants = " ".join(name for name in self.checks if name not in (*ACTIONS, ENDS))
        properties = " ".join(name for name in self.checks if name in (*ACTIONS, ENDS))
        lines = [constants, "VIEW View", f"SPECIFICATION {'FairSpec' if self.fair else 'Spec'}"]
        lines += [f"INVARIANTS {invariants}"] * bool(invariants) + [f"PROPERTIES {properties}"] * bool(properties)
        # TLC's liveness checking is wrong under symmetry.
        if not self.fair:
            lines.append(f"SYMMETRY {'WorkersAreAlike' if 'Keyed' in self.constants else 'AllAreAlike'}")
        return "\n".join(lines)

    def check(self) -> Verdict:
        return check(self.config(), temporal=ENDS if self.fair else None)


RIGHT = [
    Run("three workers, two jobs, one key"),
    Run("two workers, handlers that release too", SMALL | RELEASES),
    Run("one job of the two has the key", SMALL | ALONE),
    Run("an orphaned hold at the start", SMALL | ORPHAN | ONE_ATTEMPT),
    Run("a lease of two ticks", SMALL | ONE_ATTEMPT | {"Lease": "2"}),
    Run("each job ends, an orphaned hold at the start", SMALL | ORPHAN | ONE_ATTEMPT, checks=(ENDS,)),
]

REDUNDANT = [
    Run("no status guard, but the token is cleared", SMALL | ONE_ATTEMPT, ("NoStatusGuard",)),
    Run("the token is kept, but the status is guarded", SMALL | ONE_ATTEMPT, ("TokenKept",)),
]
"""Each of the two is enough to keep a write from an ended row."""


def _broken(name: str, fault: str | tuple[str, ...], expected: str, **constants: str) -> Run:
    faults = (fault,) if isinstance(fault, str) else fault
    return Run(name, SMALL | constants, faults, (expected,), expected)


BROKEN = [
    _broken("no token check", "NoTokenCheck", "StaleWritesChangeNothing"),
    _broken("no token check: holds of others stay", "NoTokenCheck", "NoOrphanIsMade"),
    _broken("no status guard, tokens are kept", ("NoStatusGuard", "TokenKept"), "TerminalIsFinal"),
    _broken("renewal without token check", "RenewalWithoutToken", "StaleWritesChangeNothing"),
    _broken("a token is used again", "TokenReused", "NothingLost"),
    _broken("linger dropped", "LingerDropped", "LingerProtects"),
    _broken("hold freed before the write", "HoldFreedFirst", "OneRunningPerKey"),
    _broken("hold not freed by the write", "HoldLeftBehind", "NoOrphanIsMade"),
    _broken("sweep without the running check", "SweepWithoutRunningCheck", "OneRunningPerKey"),
    _broken("sweep by key alone", "SweepByKeyAlone", "RunningHoldsKey", **ORPHAN),
    _broken("recovery without a check under its lock", "RecoveryUnchecked", "TerminalIsFinal"),
    _broken("recovery without the lease check", "RecoveryWithoutLeaseCheck", "LeaseIsRespected"),
    _broken("claim without the status check", "ClaimUnchecked", "StartsAreCounted"),
    _broken("key taken without a check", "KeyTakenUnchecked", "OneRunningPerKey"),
    _broken("failure job in a transaction of its own", "FailureJobApart", "OneFailureJob"),
    _broken("failure job whether or not the job failed", "FailureJobUnfenced", "OneFailureJob"),
    _broken("no sweep of orphans", "NoOrphanSweep", ENDS, **ORPHAN, **ONE_ATTEMPT),
    _broken("no recovery", "NoRecovery", ENDS, **ONE_ATTEMPT),
]

LIMITS = [Run("a pause past lease and linger", SMALL, checks=("NeverTwoHandlers",), expected="NeverTwoHandlers")]
"""What the queue does not promise."""

FULL = [
    Run("three workers that release too, a lease of two ticks", RELEASES | {"Lease": "2"}),
    Run("three workers, one job of the two has the key", ALONE | RELEASES),
    Run("each job ends, with retries and releases", SMALL | ORPHAN | RELEASES, checks=(ENDS,)),
]
"""Minutes; by `python -m tests.formal --full`."""

RUNS = RIGHT + REDUNDANT + BROKEN + LIMITS
