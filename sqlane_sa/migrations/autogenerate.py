"""What Alembic's autogenerate does about a queue's tables: it writes the call that migrates them, and nothing else.

Loaded by `sqlane_sa.alembic_plugin`, when autogenerate runs.
"""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import MigrateOperation, UpgradeOps
from alembic.util import CommandError, PriorityDispatchResult, to_list
from sqlalchemy import Connection, Table

from sqlane_sa.migrations import calls, chain, version
from sqlane_sa.migrations.bind import untranslated
from sqlane_sa.migrations.filters import Ownership
from sqlane_sa.migrations.runner import behind
from sqlane_sa.migrations.target import Target, configured
from sqlane_sa.migrations.unrecorded import refuse_unrecorded
from sqlane_sa.schema import PLACE
from sqlane_sa.values.errors import SchemaError


class UpgradeTables(MigrateOperation):
    """The call of `migrations.upgrade` from the revision `from_` (None: before the first) to the newest."""

    def __init__(self, at: Target, from_: str | None) -> None:
        self.at = at
        self.to = chain.head()
        self.from_ = from_

    def reverse(self) -> DowngradeTables:
        return DowngradeTables(self)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """What `alembic check` prints."""
        return (
            "upgrade_sqlane",
            f"{behind(self.at, self.from_)}; let `alembic revision --autogenerate` write the revision that calls "
            f"{calls.upgrade_call(self.at, to=self.to, from_=self.from_)}",
        )


class DowngradeTables(MigrateOperation):
    """The call of `migrations.downgrade` that undoes an `UpgradeTables`."""

    def __init__(self, upgrade: UpgradeTables) -> None:
        self.upgrade = upgrade

    def reverse(self) -> UpgradeTables:
        return self.upgrade


def compare(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    """Add the call for every queue that is behind; hide the queues' tables from whoever compares after this.

    Raises `CommandError` when a newer version of the package has migrated a queue, or no revision made its tables.
    """
    targets = queues_of(context)
    _hide(context, Ownership(targets))
    assert context.connection is not None  # autogenerate refuses the offline mode
    with untranslated(context.connection):
        # First of all operations: tables of the application may refer to the queue's.
        upgrade_ops.ops.extend(step for at in targets for step in _missing(context.connection, at))
    return PriorityDispatchResult.CONTINUE


def queues_of(context: AutogenContext) -> list[Target]:
    """The queues whose metadata is in the `target_metadata`; without any, the one that the Config names.

    The latter is the default queue where the Config names none.
    """
    places = [metadata.info[PLACE] for metadata in to_list(context.metadata, []) if PLACE in metadata.info]
    return [Target(*place) for place in places] or [configured(context.migration_context.config)]


def _missing(conn: Connection, at: Target) -> list[UpgradeTables]:
    found = version.read(conn, version.version_table(at))
    try:
        if found is None:
            refuse_unrecorded(conn, at)
        complete = chain.recorded_number(found) == chain.number("head")
    except SchemaError as error:
        raise CommandError(str(error)) from error
    return [] if complete else [UpgradeTables(at, found)]


def _hide(context: AutogenContext, ours: Ownership) -> None:
    """The filters of the application go on to decide about everything else."""
    default_schema = context.dialect.default_schema_name
    by_name, by_object = context.run_name_filters, context.run_object_filters

    def run_name_filters(name: Any, type_: Any, parent_names: Any) -> bool:
        if type_ == "table" and ours.has(name, parent_names.get("schema_name"), default_schema):
            return False
        return by_name(name, type_, parent_names)

    def run_object_filters(item: Any, name: Any, type_: Any, reflected: bool, compare_to: Any) -> bool:
        if isinstance(item, Table) and ours.has(item.name, item.schema, default_schema):
            return False
        return by_object(item, name, type_, reflected, compare_to)

    context.run_name_filters = run_name_filters  # type: ignore[method-assign]
    context.run_object_filters = run_object_filters  # type: ignore[assignment]


@renderers.dispatch_for(UpgradeTables)
def _render_upgrade(context: AutogenContext, step: UpgradeTables) -> str:
    context.imports.add("from sqlane_sa import migrations")
    return calls.upgrade_call(step.at, to=step.to, from_=step.from_)


@renderers.dispatch_for(DowngradeTables)
def _render_downgrade(context: AutogenContext, step: DowngradeTables) -> str:
    context.imports.add("from sqlane_sa import migrations")
    return calls.downgrade_call(step.upgrade.at, to=step.upgrade.from_, from_=step.upgrade.to)
