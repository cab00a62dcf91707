"""Which tables Alembic's autogenerate leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from alembic import context
from sqlalchemy import Table

from sqlane_sa.migrations.target import Target, target_of
from sqlane_sa.schema import Tables

NameFilter = Callable[[str | None, str, Mapping[Any, str | None]], bool]
ObjectFilter = Callable[[Any, str | None, str, bool, Any], bool]


def include_name(*queues: object) -> NameFilter:
    """For `context.configure(include_name=...)`: autogenerate does not look at the tables of these queues.

    Either this or `include_object` is needed where `queue.metadata` is not in the `target_metadata`. Raises
    `HandleError` for what is no Queue.
    """
    ours = Ownership(map(target_of, queues))

    def include(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:
        return type_ != "table" or not ours.has(name, parent_names.get("schema_name"), _default_schema())

    return include


def include_object(*queues: object) -> ObjectFilter:
    """For `context.configure(include_object=...)`; see `include_name`, which reads less from the database."""
    ours = Ownership(map(target_of, queues))

    def include(item: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        return not isinstance(item, Table) or not ours.has(item.name, item.schema, _default_schema())

    return include


class Ownership:
    """Tells the tables of these queues from all others."""

    def __init__(self, targets: Iterable[Target]) -> None:
        self._names: set[tuple[str | None, str]] = {
            (at.schema, table.name) for at in targets for table in Tables(at.prefix, at.schema).metadata.tables.values()
        }

    def has(self, name: str | None, schema: str | None, default_schema: str | None) -> bool:
        """Alembic says None for the connection's default schema, whatever the queue calls it."""
        if schema in (None, default_schema):
            return not self._names.isdisjoint({(None, name), (default_schema, name)})
        return (schema, name) in self._names


def _default_schema() -> str | None:
    try:
        return context.get_context().dialect.default_schema_name
    # No environment runs (the second: any more): compare_metadata() with a context of the caller's own.
    except (NameError, AttributeError):
        return None
