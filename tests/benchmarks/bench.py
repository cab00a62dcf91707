"""What a line of the table is, and what one run measures it with."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.drain import Drained, drain
from tests.benchmarks.ground import Ground
from tests.benchmarks.peers import NotInstalledError, Peer, other, ours

Figures = Mapping[str, float]
Measure = Callable[[], Figures]


class Bench:
    """One run: where, how many jobs, and which peers. `jobs` is the size that all others are multiples of."""

    def __init__(
        self, ground: Ground, *, jobs: int, limit: float, folder: Path | None = None, peers: Sequence[str] = ()
    ) -> None:
        self.ground = ground
        self.jobs = jobs
        self.limit = limit
        self.folder = folder
        self.names = list(peers)
        self.missing: dict[str, str] = {}
        self._peers: dict[str, Peer] = {}
        self._ours: dict[tuple[str, ...], Peer] = {}

    def peers(self, *wanted: str) -> list[Peer]:
        """Those of the run's peers that are installed; all of them, or the named ones."""
        return [peer for name in self.names if (not wanted or name in wanted) and (peer := self._peer(name))]

    def _peer(self, name: str) -> Peer | None:
        if name not in self._peers and name not in self.missing:
            try:
                self._peers[name] = other(name, self.folder)
            except NotInstalledError as error:
                self.missing[name] = str(error)
        return self._peers.get(name)

    @contextmanager
    def database(self, peer: Peer) -> Iterator[str]:
        """An empty database with the peer's tables."""
        with self.ground.database() as dsn:
            peer.call("setup", dsn)
            yield dsn

    def drain(
        self,
        peer: Peer,
        *,
        jobs: int | None = None,
        workers: int = 1,
        prepare: Callable[[str], object] | None = None,
        left_sql: str = "",
        limit: float | None = None,
    ) -> Drained:
        """Jobs enqueued in bulk and worked off, in a database of their own that `prepare` has filled before."""
        count = jobs or self.jobs
        with self.database(peer) as dsn:
            if prepare:
                prepare(dsn)
            peer.call("bulk", dsn, count)
            return drain(self.ground, peer, dsn, count, workers=workers, limit=limit or self.limit, left_sql=left_sql)

    def ours(self, label: str = "ours", **variables: object) -> Peer:
        """sqlane_sa with variables of `peer_sqlane.py`."""
        key = (label, *(f"{name}={value}" for name, value in variables.items()))
        if key not in self._ours:
            self._ours[key] = ours(label, **variables)
        return self._ours[key]


class Goal(NamedTuple):
    """`least` or `most`: of the ratio to what it is compared with, or of our own figure."""

    least: float | None = None
    most: float | None = None
    own: bool = False

    def reached(self, own: float, ratio: float) -> bool:
        value = own if self.own else ratio
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self == Goal():
            return ""
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        return bound if self.own else f"{bound} x"


class Figure(NamedTuple):
    """What a line shows of its measurements: `goals` by the label of the side it is compared with ("" for none).
    `always`: a row for each peer that was measured, also where there is no goal."""

    key: str
    unit: str
    title: str = ""
    goals: Mapping[str, Goal] = {}
    always: bool = True


@dataclass
class Line:
    """One or a few rows. In `title`, {50} stands for fifty times the run's jobs. `sides` are what is measured in turn,
    ours first, by label; a reason instead where that cannot be done here."""

    name: str
    title: str
    sides: Callable[[Bench], dict[str, Measure] | str]
    figures: Sequence[Figure]
    once: bool = False
    """In the first round only: it is long, or no neighbour on the machine changes its figures."""
    paired: bool = False
    """Its sides are two looks at one run."""

    def titled(self, jobs: int) -> str:
        return re.sub(r"\{(\d+)\}", lambda factor: f"{int(factor[1]) * jobs:,}", self.title)


class Row(NamedTuple):
    line: str
    title: str
    unit: str
    ours: float | None
    compared: str
    theirs: float | None
    ratio: float | None
    goal: str
    reached: bool | None
    note: str = ""


@dataclass
class Measured:
    """All that came of one line: for each side, the figures of each round; or why there are none."""

    line: Line
    title: str
    samples: dict[str, list[Figures]] = field(default_factory=dict)
    problem: str = ""

    def median(self, side: str, key: str) -> float | None:
        values = [one[key] for one in self.samples.get(side, ()) if not math.isnan(one.get(key, math.nan))]
        return statistics.median(values) if values else None

    def rows(self) -> list[Row]:
        if self.problem or not self.samples:
            return [Row(self.line.name, self.title, "", None, "", None, None, "", None, self.problem or "not measured")]
        return [row for figure in self.line.figures for row in self._rows(figure)]

    def _rows(self, figure: Figure) -> Iterator[Row]:
        own_side, *others = self.samples
        # What has a goal comes first, and has its row also where it was not measured.
        compared = [*figure.goals, *(side for side in others if figure.always and side not in figure.goals)]
        for side in compared or [""]:
            yield self._row(figure, own_side, side)

    def _row(self, figure: Figure, own_side: str, side: str) -> Row:
        own, theirs = self.median(own_side, figure.key), self.median(side, figure.key)
        ratio = own / theirs if own is not None and theirs else None
        goal = figure.goals.get(side)
        judged = goal and goal != Goal() and own is not None and (goal.own or ratio is not None)
        reached = goal.reached(own or 0.0, ratio or 0.0) if goal and judged else None
        title = f"{self.title}{', ' if figure.title else ''}{figure.title}"
        note = "" if side in ("", *self.samples) else f"no {side}"
        if any(one.get("capped") for label in (own_side, side) for one in self.samples.get(label, ())):
            note = "stopped at the limit"
        return Row(self.line.name, title, figure.unit, own, side, theirs, ratio, str(goal or ""), reached, note)


def figures(drained: Drained) -> dict[str, float]:
    return {"rate": drained.rate, "memory": drained.memory, "capped": float(drained.capped), **drained.costs}
