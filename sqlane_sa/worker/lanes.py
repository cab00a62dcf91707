"""Lanes: what a worker knows of the pending jobs, from its last probe and its claims since."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import NamedTuple

from sqlane_sa.store import Lane

LaneKey = tuple[int, str]
Place = tuple[datetime, str]
"""Of a job in its lane: run_at and id."""

MAX_SUPPOSED = 16


class LowWaterMark(NamedTuple):
    """How far the claims from a lane have come, and until when the next ones may begin there."""

    place: Place
    until: float


class Lanes:
    """When each lane (name and priority) is due next, in monotonic seconds, apart for jobs with and without keys."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._plain: dict[LaneKey, float] = {}
        self._keyed: dict[LaneKey, float] = {}
        self._claimed: dict[LaneKey, None] = {}
        self._marks: dict[LaneKey, LowWaterMark] = {}
        self._turn = 0

    def refresh(self, lanes: Iterable[Lane], now: float) -> None:
        self._plain.clear()
        self._keyed.clear()
        for lane in lanes:
            if lane.name in self._names:
                known = self._keyed if lane.keyed else self._plain
                known[lane.priority, lane.name] = now + lane.delay_ms / 1000

    def share(self, want: int, now: float) -> list[tuple[str, int, int]]:
        """`(name, priority, limit)` of the due lanes without keys: at most `want` rows in all.

        The best priority comes first; names of one priority share alike, and take turns for what is left over.
        """
        due = sorted(key for key, at in self._plain.items() if at <= now)
        shares: list[tuple[str, int, int]] = []
        while due and want > 0:
            group = [key for key in due if key[0] == due[0][0]]
            due = due[len(group) :]
            self._turn += 1
            start = self._turn % len(group)
            for place, (priority, name) in enumerate(group[start:] + group[:start]):
                limit = -(-want // (len(group) - place))
                if limit:
                    shares.append((name, priority, limit))
                    want -= limit
        return shares

    def suppose_due(self, now: float) -> None:
        """After a wake-up: the lanes that had jobs lately are the ones to try, without a probe first."""
        for key in self._claimed:
            self._plain[key] = now

    def claimed(self, name: str, priority: int) -> None:
        """Remember a lane that had jobs, in place of the one that had some the longest time ago."""
        self._claimed.pop((priority, name), None)
        self._claimed[priority, name] = None
        if len(self._claimed) > MAX_SUPPOSED:
            del self._claimed[next(iter(self._claimed))]

    def exhausted(self, name: str, priority: int) -> None:
        """A claim found fewer due jobs than it asked for: nothing more until the next probe. Or, where it began at a
        mark, only before that."""
        if self._marks.pop((priority, name), None) is None:
            self._plain.pop((priority, name), None)

    def low_water_marks(self, now: float) -> dict[tuple[str, int], Place]:
        """Where to begin, of lanes (name, priority) that were claimed from a moment ago.

        While somebody holds a snapshot, neither VACUUM nor the index itself can drop what was claimed: a scan from the
        start walks over all of it. One that begins at a mark sees nothing that has come in before it (a late commit, a
        job put back), so a mark counts for a while only.
        """
        self._marks = {key: mark for key, mark in self._marks.items() if mark.until > now}
        return {(name, priority): mark.place for (priority, name), mark in self._marks.items()}

    def set_low_water_mark(self, name: str, priority: int, place: Place, until: float) -> None:
        """A claim got all it asked for, up to this place. `until` counts for a new mark, not for one that moves on."""
        known = self._marks.get((priority, name))
        self._marks[priority, name] = LowWaterMark(place, until if known is None else known.until)

    def keyed_names(self, now: float) -> set[str]:
        """Names with due jobs that have mutex keys."""
        return {name for (_, name), at in self._keyed.items() if at <= now}

    def is_due(self, now: float) -> bool:
        """Whether a lane without keys is due."""
        return any(at <= now for at in self._plain.values())

    def next_due(self, now: float) -> float | None:
        """When the next lane that is not due yet will be."""
        return min((at for known in (self._plain, self._keyed) for at in known.values() if at > now), default=None)
