"""Late results: their rows are locked by somebody else's transaction, or refused for a while; they are written when
that has ended."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from sqlane_sa.worker.outcomes import Result

log = logging.getLogger("sqlane_sa.worker")

FIRST_PAUSE = 0.1
LAST_PAUSE = 1.0


class LateResults:
    """They wait apart from the others, so that one locked row holds up no other. `at` is when to try again."""

    def __init__(self) -> None:
        self._results: dict[int, Result] = {}
        self._pause = FIRST_PAUSE
        self._said = False
        self.at = math.inf

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, job: object) -> bool:
        return id(job) in self._results

    def add(self, results: Sequence[Result], now: float) -> None:
        """Results that a batch passed over, to be tried at once: they may be locked, or lost."""
        if results:
            self._keep(results)
            self.at = now

    def take(self, now: float) -> list[Result]:
        """All of them, once the pause is over. They stay here until `put` says what became of them."""
        return list(self._results.values()) if self.at <= now else []

    def put(self, tried: Sequence[Result], locked: Sequence[Result], now: float) -> None:
        """Of the results that were tried, for the first time or again, these wait for a lock."""
        for job, _ in tried:
            self._results.pop(id(job), None)
        self._keep(locked)
        self._say(locked)
        if not self._results:
            self._pause, self.at = FIRST_PAUSE, math.inf
        elif locked:
            self.at = now + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)

    def _keep(self, results: Sequence[Result]) -> None:
        self._results.update((id(result[0]), result) for result in results)

    def _say(self, locked: Sequence[Result]) -> None:
        if locked and not self._said:
            self._said = True
            first = locked[0][0]
            why = "another transaction has locked" if first.refusal is None else "the database refuses for now"
            log.warning(
                "%d results wait for rows that %s, the first for job %s%s; the rest goes on",
                len(locked),
                why,
                first.id,
                f" ({first.refusal})" if first.refusal else "",
            )
        if self._said and not self._results:
            self._said = False
            log.warning("the results that waited for their rows are written")
