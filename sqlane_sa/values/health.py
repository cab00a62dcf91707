"""Health: what PostgreSQL's statistics say about a queue, as values."""

from __future__ import annotations

from typing import NamedTuple


class Snapshot(NamedTuple):
    """Who keeps VACUUM from removing dead rows.

    `kind` is "session", "standby" (its feedback), "replication slot" or "prepared transaction"; `name` is that of the
    slot or the prepared transaction. `age_ms` is the time since its transaction began: None where it has no time, or
    where this role may not see it. `transactions` is how many write transactions the server has begun since then.
    """

    kind: str
    name: str | None
    pid: int | None
    user: str | None
    application_name: str | None
    state: str | None
    age_ms: int | None
    transactions: int


class TableHealth(NamedTuple):
    """One table by its statistics: rows are estimates, `bytes` are without the indexes.

    `updates` and `hot_updates` count since the statistics were reset. The ages in ms are those of the last VACUUM and
    ANALYZE, automatic or not; None: there was none.
    """

    name: str
    live_rows: int
    dead_rows: int
    updates: int
    hot_updates: int
    bytes: int
    index_bytes: int
    vacuum_age_ms: int | None
    analyze_age_ms: int | None

    @property
    def hot_share(self) -> float | None:
        """The share (0 to 1) of updates that touched no index; None without updates."""
        return self.hot_updates / self.updates if self.updates else None


class Health(NamedTuple):
    """What slows a queue down without showing in its jobs.

    `snapshot` is the oldest one, `invalid_indexes` are names of indexes of the queue that PostgreSQL does not use,
    `notify_queue` is how full (0 to 1) the server's queue of notifications is, `autovacuum` whether the server runs it.
    `sees_others` is False where this role may not see since when the sessions of others have their snapshots.
    """

    snapshot: Snapshot | None
    tables: tuple[TableHealth, ...]
    invalid_indexes: tuple[str, ...]
    notify_queue: float
    autovacuum: bool
    sees_others: bool
