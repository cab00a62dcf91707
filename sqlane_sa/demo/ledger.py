"""What the demo writes down to measure by: each job that was placed, and each run of a handler."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from sqlane_sa import JobContext

Handler = Callable[[Any, JobContext], None]


class Placed(NamedTuple):
    """A job of an order, and whether the transaction that placed both was committed."""

    job_id: str
    order_id: int
    committed: bool


class Ledger:
    """Two tables, written in transactions of their own, so that they know what became of others."""

    def __init__(self, engine: sa.Engine, schema: str) -> None:
        self._engine = engine
        self.metadata = sa.MetaData(schema=schema)
        moment = sa.TIMESTAMP(timezone=True)
        self.placed = sa.Table(
            "ledger_placed",
            self.metadata,
            sa.Column("job_id", sa.Text, primary_key=True),
            sa.Column("order_id", sa.Integer, nullable=False),
            sa.Column("committed", sa.Boolean, nullable=False),
        )
        self.runs = sa.Table(
            "ledger_runs",
            self.metadata,
            sa.Column("job_id", sa.Text, primary_key=True),
            sa.Column("lock_token", sa.Text, primary_key=True),
            sa.Column("worker_pid", sa.Integer, nullable=False),
            sa.Column("started_at", moment, nullable=False, server_default=sa.func.clock_timestamp()),
            sa.Column("ended_at", moment),
            sa.Column("outcome", sa.Text),
        )

    def note(self, placed: Sequence[Placed]) -> None:
        """Note jobs after the fact."""
        with self._engine.begin() as conn:
            conn.execute(self.placed.insert(), [job._asdict() for job in placed])

    def measured(self, handler: Handler) -> Handler:
        """Note when each run of the handler starts and ends, by the database's clock, and how."""

        @functools.wraps(handler)
        def run(payload: Any, ctx: JobContext) -> None:
            self._start(ctx)
            outcome = "returned"
            try:
                handler(payload, ctx)
            except Exception as error:
                outcome = type(error).__name__
                raise
            finally:
                self._end(ctx, outcome)

        return run

    def _start(self, ctx: JobContext) -> None:
        values = {"job_id": ctx.id, "lock_token": ctx.lock_token, "worker_pid": os.getpid()}
        with self._engine.begin() as conn:
            conn.execute(self.runs.insert().values(values))

    def _end(self, ctx: JobContext, outcome: str) -> None:
        run = (self.runs.c.job_id == ctx.id) & (self.runs.c.lock_token == ctx.lock_token)
        with self._engine.begin() as conn:
            conn.execute(self.runs.update().where(run).values(ended_at=sa.func.clock_timestamp(), outcome=outcome))
