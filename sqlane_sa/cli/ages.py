"""Times that have passed, for a person."""

from __future__ import annotations

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def age(ms: int) -> str:
    """Two units at most: "350 ms", "12 s", "3 min 5 s", "2 d 4 h"."""
    if ms < 1000:
        return f"{ms} ms"
    parts: list[tuple[int, str]] = []
    rest = ms // 1000
    for unit, size in UNITS:
        if rest >= size or parts:
            parts.append((rest // size, unit))
            rest %= size
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)
