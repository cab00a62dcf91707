"""Candidates: due jobs that can start now.

A plain job can start when it is due. A job with mutex keys can start when none of its keys is held or lingers, and
when it is the oldest due job of each of its keys: the order per key is by (run_at, id), across names and whatever
the priorities. Every pending job with keys has a row per key in `waits`, so "is an older job ahead?" is one index
probe; a job that is not due yet is never ahead of one that is.

Keyed jobs are looked for twice. First in a window: the first 500 due ones of each name and priority, each checked by
itself until enough are found. With 100,000 jobs behind one held key the window holds nothing but jobs that cannot
start, so a full window that yielded too little is followed by a walk over the keys: from key to key in `waits`, the
head of each line, until some can start or the keys end. No key starves behind another.

A row of `waits` counts only with its pending job: rows left over from jobs changed by hand block nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, Double

from sqlane_sa.schema import Tables
from sqlane_sa.statement import INT, INTS, SMALL, TEXT, TEXTS, Statement, Types
from sqlane_sa.store.reading import readable

WINDOW = 500
HEADS = 2000


class Candidate(NamedTuple):
    id: str
    name: str
    priority: int
    run_at: float


# A number, which every driver can compare: of a time that is far away, some make a text.
_EPOCH = "CAST(extract(epoch FROM " + readable("{0}.run_at") + ") AS double precision)"

_COLUMNS: Types = {"id": TEXT, "job_name": TEXT, "priority": SMALL, "run_at": Double()}

# One lane per (name, priority): with the priority fixed, run_at is an index bound, and jobs that are not due yet,
# however good their priority, are never walked over.
LANES = """
WITH RECURSIVE lane AS (
    SELECT w.job_name, w.max_rows, f.priority
    FROM unnest(CAST(:names AS text[]), CAST(:limits AS integer[])) AS w(job_name, max_rows) CROSS JOIN LATERAL (
        SELECT j.priority FROM {jobs} AS j
        WHERE j.status = 'pending' AND j.mutex_keys IS KEYED AND j.job_name = w.job_name
        ORDER BY j.priority LIMIT 1) AS f
    UNION ALL
    SELECT l.job_name, l.max_rows, n.priority FROM lane AS l CROSS JOIN LATERAL (
        SELECT j.priority FROM {jobs} AS j
        WHERE j.status = 'pending' AND j.mutex_keys IS KEYED AND j.job_name = l.job_name AND j.priority > l.priority
        ORDER BY j.priority LIMIT 1) AS n
)"""

DUE_IN_LANE = """
        SELECT j.ctid AS place, j.id, j.run_at, j.mutex_keys FROM {jobs} AS j
        WHERE j.status = 'pending' AND j.mutex_keys IS KEYED AND j.job_name = l.job_name AND j.priority = l.priority
          AND j.run_at <= statement_timestamp()
        ORDER BY j.run_at, j.id"""

# Scalar subqueries with a LIMIT, because they can only run as index probes: EXISTS may become a hash table of all that
# is held or waits. The line is looked at only where the key is free. The coalesce() of the status keeps the planner
# from the partial index of what is pending: where ANALYZE has found nothing pending, it looks like an empty page, and a
# plan that stays would read all of it for each probe.
_STARTABLE = """
    NOT EXISTS (SELECT FROM unnest(c.mutex_keys) AS k(mutex_key) WHERE coalesce((
        SELECT true FROM {mutexes} AS m WHERE m.mutex_key = k.mutex_key
        AND (m.held_until IS NULL OR m.held_until > statement_timestamp()) LIMIT 1), KNOWN (
        SELECT true FROM {waits} AS w CROSS JOIN LATERAL (
            SELECT FROM {jobs} AS a
            WHERE a.id = w.job_id AND coalesce(a.status, '') = 'pending' AND a.mutex_keys IS NOT NULL
            AND (a.run_at, a.id) < (c.run_at, c.id) LIMIT 1) AS pending
        WHERE w.mutex_key = k.mutex_key AND (w.run_at, w.job_id) < (c.run_at, c.id) LIMIT 1)))"""
STARTABLE = _STARTABLE.replace("KNOWN ", "")

# Nobody is ahead of a head in the line that it was found in, unless its place there is an old one.
STARTABLE_HEAD = _STARTABLE.replace("KNOWN", "CASE WHEN c.in_place AND k.mutex_key = c.mutex_key THEN false END,")

PLAIN = Statement(
    LANES.replace("KEYED", "NULL")
    + f"""
SELECT c.id, l.job_name, l.priority, {_EPOCH.format("c")} AS run_at FROM lane AS l CROSS JOIN LATERAL ("""
    + DUE_IN_LANE.replace("KEYED", "NULL")
    + " LIMIT l.max_rows) AS c",
    {"names": TEXTS, "limits": INTS},
    _COLUMNS,
)

# Of the window of lane l, those that can start: at most its limit, and each further one is checked only when the limit
# is not reached. Of those in the window that share a key, the oldest alone is worth a check: with one line in all of
# it, the others cost more than the rest of the claim. OFFSET 0 keeps the checks from being made before that.
STARTABLE_IN_WINDOW = (
    """
    SELECT c.place, c.id, c.run_at FROM (
        SELECT r.place, r.id, r.run_at, r.mutex_keys FROM (
            SELECT d.place, d.id, d.run_at, d.mutex_keys, k.mutex_key,
                   rank() OVER (PARTITION BY k.mutex_key ORDER BY d.run_at, d.id) AS turn
            FROM ("""
    + DUE_IN_LANE.replace("KEYED", "NOT NULL")
    + """ LIMIT :window) AS d LEFT JOIN LATERAL unnest(d.mutex_keys) AS k(mutex_key) ON true) AS r
        GROUP BY r.run_at, r.id, r.mutex_keys, r.place
        HAVING coalesce(max(r.turn) FILTER (WHERE r.mutex_key IS NOT NULL), 1) = 1
        ORDER BY r.run_at, r.id OFFSET 0) AS c
    WHERE """
    + STARTABLE
    + " ORDER BY c.run_at, c.id LIMIT l.max_rows"
)

# A row without an id says that the window of its lane is full.
WINDOWED = Statement(
    LANES.replace("KEYED", "NOT NULL")
    + f"""
SELECT s.id, l.job_name, l.priority, {_EPOCH.format("s")} AS run_at FROM lane AS l CROSS JOIN LATERAL ("""
    + STARTABLE_IN_WINDOW
    + """) AS s
UNION ALL
SELECT NULL, l.job_name, l.priority, NULL FROM lane AS l CROSS JOIN LATERAL ("""
    + DUE_IN_LANE.replace("KEYED", "NOT NULL")
    + " OFFSET :window - 1 LIMIT 1) AS last",
    {"names": TEXTS, "limits": INTS, "window": INT},
    _COLUMNS,
)

# From key to key of the lines, one index probe each.
WALK = """
WITH RECURSIVE line AS (
    (SELECT w.mutex_key, 1 AS place FROM {waits} AS w WHERE w.mutex_key > :after_key ORDER BY w.mutex_key LIMIT 1)
    UNION ALL
    SELECT n.mutex_key, l.place + 1 FROM line AS l CROSS JOIN LATERAL (
        SELECT w.mutex_key FROM {waits} AS w WHERE w.mutex_key > l.mutex_key ORDER BY w.mutex_key LIMIT 1) AS n
    WHERE l.place < :heads
)"""

# The first due job in the line of l.mutex_key: places without their pending jobs count nothing. The names are read by a
# subquery, once: a cast of a parameter is made anew for each row.
HEAD = """
    SELECT h.place, h.id, h.job_name, h.priority, h.run_at, h.mutex_keys, h.in_place, l.mutex_key
    FROM LINES AS l CROSS JOIN LATERAL (
        SELECT j.place, j.id, j.job_name, j.priority, j.run_at, j.mutex_keys, j.run_at = w.run_at AS in_place
        FROM {waits} AS w CROSS JOIN LATERAL (
            SELECT a.ctid AS place, a.id, a.job_name, a.priority, a.run_at, a.mutex_keys FROM {jobs} AS a
            WHERE a.id = w.job_id AND coalesce(a.status, '') = 'pending' AND a.mutex_keys IS NOT NULL
            AND a.run_at <= statement_timestamp() LIMIT 1) AS j
        WHERE w.mutex_key = l.mutex_key AND w.run_at <= statement_timestamp()
        ORDER BY w.run_at, w.job_id LIMIT 1) AS h
    WHERE h.job_name = ANY(ARRAY(SELECT unnest(CAST(:names AS text[]))))"""

# A row without an id names the last key that was looked at, when there may be more.
WALKED = Statement(
    WALK
    + ", head AS MATERIALIZED ("
    + HEAD.replace("LINES", "line")
    + """
)
SELECT c.id, c.job_name, c.priority, """
    + _EPOCH.format("c")
    + """ AS run_at FROM head AS c WHERE """
    + STARTABLE_HEAD
    + """
UNION ALL
SELECT NULL, l.mutex_key, CAST(0 AS smallint), NULL FROM line AS l WHERE l.place = :heads""",
    {"names": TEXTS, "after_key": TEXT, "heads": INT},
    _COLUMNS,
)


def find_candidates(
    conn: Connection,
    /,
    tables: Tables,
    *,
    limits_by_name: Mapping[str, int],
    keyed_names: Collection[str] | None = None,
    after_key: str = "",
    window: int = WINDOW,
) -> list[str]:
    """Ids of due jobs that can start now, best first, at most the limit of rows per name.

    `keyed_names` are the names whose pending jobs may have mutex keys (None: any; leaving a name out saves an index
    probe and hides its jobs that do have keys). `after_key` is where the walk over the keys starts, so that a caller
    that moves it on gives each key its turn. Within a priority the names take turns.
    """
    limits = {name: limit for name, limit in limits_by_name.items() if limit > 0}
    if not limits:
        return []
    found = _candidates(conn, tables, PLAIN, limits)
    keyed = {name: limits[name] for name in limits if keyed_names is None or name in keyed_names}
    if keyed:
        found += _keyed(conn, tables, keyed, after_key, window)
    return [candidate.id for candidate in _best(found, limits)]


def find_keyed_candidates(
    conn: Connection, /, tables: Tables, *, limits_by_name: Mapping[str, int], after_key: str = "", window: int = WINDOW
) -> list[str]:
    """`find_candidates` for the jobs with mutex keys alone."""
    return [one.id for one in _best(_keyed(conn, tables, limits_by_name, after_key, window), limits_by_name)]


def find_keyed_places(
    conn: Connection, /, tables: Tables, *, limits_by_name: Mapping[str, int], after_key: str = ""
) -> dict[str, float]:
    """`find_keyed_candidates` with their places in the lines: id to run_at in seconds since 1970, best first."""
    found = _best(_keyed(conn, tables, limits_by_name, after_key, WINDOW), limits_by_name)
    return {one.id: one.run_at for one in found}


def _candidates(
    conn: Connection, tables: Tables, statement: Statement, limits: Mapping[str, int], **more: int
) -> list[Candidate]:
    parameters = {"names": list(limits), "limits": list(limits.values()), **more}
    return [Candidate._make(row) for row in conn.execute(statement.on(tables), parameters)]


def _keyed(conn: Connection, tables: Tables, limits: Mapping[str, int], after_key: str, window: int) -> list[Candidate]:
    rows = _candidates(conn, tables, WINDOWED, limits, window=window)
    found = [row for row in rows if row.id is not None]
    short = sorted({lane.name for lane in rows if lane.id is None and _found(found, lane) < limits[lane.name]})
    if short:
        found += next(filter(None, _walk(conn, tables, short, after_key)), [])
    return found


def _found(found: Iterable[Candidate], lane: Candidate) -> int:
    """How many of the lane's name start before what is past its window: worse priorities must not hide that."""
    return sum(one.name == lane.name and one.priority <= lane.priority for one in found)


def _walk(conn: Connection, tables: Tables, names: list[str], after_key: str) -> Iterator[list[Candidate]]:
    """The heads that can start, by stretches of 2,000 keys: from `after_key` to the end, then from the start."""
    for start in (after_key, "") if after_key else ("",):
        key: str | None = start
        while key is not None:
            parameters = {"names": names, "after_key": key, "heads": HEADS}
            rows = [Candidate._make(row) for row in conn.execute(WALKED.on(tables), parameters)]
            yield [row for row in rows if row.id is not None]
            key = next((row.name for row in rows if row.id is None), None)


def _best(found: Iterable[Candidate], limits: Mapping[str, int]) -> list[Candidate]:
    """By priority, and within a priority the names in turn: a long backlog of one name does not hide another."""
    turns: dict[tuple[str, int], int] = {}
    taken = dict.fromkeys(limits, 0)
    placed: list[tuple[int, int, Candidate]] = []
    for one in sorted(set(found), key=lambda c: (c.priority, c.run_at, c.id)):
        if taken[one.name] < limits[one.name]:
            taken[one.name] += 1
            turn = turns[one.name, one.priority] = turns.get((one.name, one.priority), 0) + 1
            placed.append((one.priority, turn, one))
    placed.sort(key=lambda item: (item[0], item[1], item[2].run_at, item[2].id))
    return [one for _, _, one in placed]
