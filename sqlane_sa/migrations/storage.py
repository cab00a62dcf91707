"""Storage parameters of a table: SQLAlchemy 2.0 has no option for them, and 2.1 has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement

from sqlane_sa.migrations.target import operations


class SetStorage(ExecutableDDLElement):
    """ALTER TABLE ... SET (parameter = value, ...)."""

    def __init__(self, table: sa.Table, parameters: Mapping[str, float]) -> None:
        self.table = table
        self.parameters = parameters


@compiles(SetStorage)
def _set_storage(element: SetStorage, compiler: Any, **_: Any) -> str:
    # Not text(): the preparer has escaped the name for the driver, and text() would do it again.
    settings = ", ".join(f"{name} = {value}" for name, value in element.parameters.items())
    return f"ALTER TABLE {compiler.preparer.format_table(element.table)} SET ({settings})"


def set_storage(table: sa.Table, parameters: Mapping[str, float]) -> None:
    """Set storage parameters of a table, in a revision. Takes SHARE UPDATE EXCLUSIVE: reads and writes go on."""
    operations().execute(SetStorage(table, parameters))
