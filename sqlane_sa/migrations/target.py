"""Where a packaged revision runs: for which prefix and schema, and with which operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from alembic import op
from alembic.config import Config
from alembic.operations import Operations

from sqlane_sa.schema import Tables
from sqlane_sa.values.errors import HandleError


@dataclass(frozen=True)
class Target:
    """The prefix and schema of a queue's tables. Raises `DefinitionError` when they cannot make identifiers."""

    prefix: str = "sqlane_"
    schema: str | None = None

    def __post_init__(self) -> None:
        Tables(self.prefix, self.schema)

    def __str__(self) -> str:
        place = f" in schema {self.schema!r}" if self.schema is not None else ""
        return f"the tables {self.prefix + '*'!r}{place}"


# A context variable, and operations of one's own: Alembic's `op` is one global, which threads would take from each
# other, and a revision that is run while an application's own revision runs would leave it without.
_running: ContextVar[tuple[Target, Operations] | None] = ContextVar("sqlane_target", default=None)


@contextmanager
def running(at: Target, operations: Operations) -> Iterator[None]:
    """Within, `target()` and `operations()` return these."""
    token = _running.set((at, operations))
    try:
        yield
    finally:
        _running.reset(token)


def target() -> Target:
    """The target of the revision that runs.

    Where Alembic runs the packaged revisions itself, it comes from the Config: `config.attributes["sqlane_target"]` (a
    Queue, its Tables or a Target), or else the options `sqlane_prefix` and `sqlane_schema` beside `script_location`.
    """
    current = _running.get()
    return current[0] if current is not None else configured(op.get_context().config)


def operations() -> Operations:
    """The Alembic operations of the revision that runs: to be used in place of `alembic.op`."""
    current = _running.get()
    return current[1] if current is not None else _operations_of_alembic()


def _operations_of_alembic() -> Operations:
    context = op.get_context()
    # The queue's own statements know no such map, and would look for the tables elsewhere.
    conn = None if context.as_sql else context.connection
    if conn is not None and conn.get_execution_options().get("schema_translate_map"):
        raise HandleError(
            "the packaged revisions themselves run under a schema_translate_map, which does not move a queue; take it "
            "off the connection in env.py, or call migrations.upgrade() in a revision of your own"
        )
    return Operations(context)


def target_of(queue: object) -> Target:
    """The target of a Queue, Tables or Target. Raises `HandleError` for anything else."""
    if isinstance(queue, Target):
        return queue
    tables = getattr(queue, "tables", queue)
    if not isinstance(tables, Tables):
        raise HandleError(f"a Queue is needed here, and got {type(queue).__name__}; pass the Queue that has the tables")
    return Target(tables.prefix, tables.schema)


def configured(config: Config | None) -> Target:
    """The target that an Alembic Config names; see `target`."""
    if config is None:
        return Target()
    if "sqlane_target" in config.attributes:
        return target_of(config.attributes["sqlane_target"])
    # Alembic reads pyproject.toml too from 1.16 on, with another method.
    option: Callable[[str], str | None] = getattr(config, "get_alembic_option", config.get_main_option)
    prefix = option("sqlane_prefix")
    return Target("sqlane_" if prefix is None else prefix, option("sqlane_schema") or None)
