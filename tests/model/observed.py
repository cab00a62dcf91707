"""The whole state of the tables, read in one statement, and its comparison with what the model predicts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tests.model.invariants import FIFO, INVARIANTS, union
from tests.model.reference import Model
from tests.model.rows import SECOND, TIMES, Hold, JobRow, Place, Soon

_MICRO = "CAST(extract(epoch FROM {0}) * 1000000 AS bigint)"


def _times(*columns: str) -> str:
    return ", ".join(f"{_MICRO.format(column)} AS {column}" for column in columns)


_OTHERS = ", ".join(name for name in JobRow.__dataclass_fields__ if name not in TIMES)


def _all(columns: str, table: str) -> str:
    return f"(SELECT coalesce(json_agg(r), '[]') FROM (SELECT {columns} FROM sqlane_{table}) AS r)"


READ = sa.text(
    f"SELECT {_MICRO.format('statement_timestamp()')} AS now,"
    f" {_all(f'{_OTHERS}, {_times(*TIMES)}', 'jobs')} AS jobs,"
    f" {_all('id, CAST(payload AS text) AS payload', 'payloads')} AS payloads,"
    f" {_all('mutex_key, job_id, lock_token, ' + _times('held_until', 'created_at'), 'mutexes')} AS mutexes,"
    f" {_all('mutex_key, job_id, ' + _times('run_at'), 'waits')} AS waits,"
    f" (SELECT coalesce(json_agg(v), '[]') FROM ({union(INVARIANTS | FIFO)}) AS v) AS violations"
)


def observe(conn: sa.Connection) -> Model:
    """The tables of `Queue()` as a model, `now` being the time of the look. Two rows of one key are a failure."""
    row = conn.execute(READ).one()
    seen = Model()
    seen.now = row.now
    seen.violations = {(found["name"], found["what"]) for found in row.violations}
    for job in row.jobs:
        keys = job.pop("mutex_keys")
        _put(seen.jobs, job["id"], JobRow(**job, mutex_keys=None if keys is None else tuple(keys)))
    for payload in row.payloads:
        _put(seen.payloads, payload["id"], payload["payload"])
    for hold in row.mutexes:
        _put(seen.mutexes, hold.pop("mutex_key"), Hold(**hold))
    for place in row.waits:
        _put(seen.waits, Place(place["mutex_key"], place["job_id"]), place["run_at"])
    return seen


def _put(table: dict[Any, Any], key: Any, row: Any) -> None:
    assert key not in table, f"two rows of {key}"
    table[key] = row


def compare(predicted: Model, seen: Model) -> None:
    """Fail with every difference. What the database may choose is taken from `seen`, if it is a right choice."""
    problems = [text for removal in predicted.removals if (text := _removed(predicted, seen, *removal))]
    expected, actual = _flat(predicted), _flat(seen)
    for where in sorted(expected.keys() | actual.keys()):
        want, is_ = expected.get(where, "nothing"), actual.get(where, "nothing")
        fits = want.fits(is_, predicted.now, seen.now) if isinstance(want, Soon) else want == is_
        if not fits:
            problems.append(f"{' '.join(where)}: {is_!r} in the database, {want!r} in the model")
    assert not problems, "\n".join(problems)


def _removed(predicted: Model, seen: Model, table: str, keys: set[Any], count: int) -> str | None:
    rows, left = getattr(predicted, table), getattr(seen, table)
    gone = {key for key in keys if key not in left}
    for key in gone:
        rows.pop(key, None)
        if table == "jobs":
            predicted.payloads.pop(key, None)
    return None if len(gone) == count else f"{table}: {sorted(gone)} of {sorted(keys)} were deleted, not {count}"


def _flat(model: Model) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {("payload", id_): text for id_, text in model.payloads.items()}
    flat |= {("place", *place): run_at for place, run_at in model.waits.items()}
    for id_, job in model.jobs.items():
        flat |= {("job", id_, name): value for name, value in vars(job).items()}
    for key, hold in model.mutexes.items():
        flat |= {("hold", key, name): value for name, value in vars(hold).items()}
    return flat


def shape(model: Model, unit: float) -> Any:
    """The state with each time in whole units of so many seconds from now: all that two runs of one order share."""

    def coarse(name: str, value: Any) -> Any:
        if name not in TIMES and name != "held_until":
            return value
        after = value.after if isinstance(value, Soon) else value and value - model.now
        return value if value is None else round(after / SECOND / unit)

    def rows(table: dict[str, Any]) -> Any:
        return {key: {name: coarse(name, value) for name, value in vars(row).items()} for key, row in table.items()}

    places = {place: coarse("run_at", run_at) for place, run_at in model.waits.items()}
    return rows(model.jobs), dict(model.payloads), rows(model.mutexes), places
