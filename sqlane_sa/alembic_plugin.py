"""The entry point of Alembic's plugins, named "sqlane_sa": what it does is in `sqlane_sa.migrations.autogenerate`.

Every `import alembic` loads this module and calls `setup`, in every application that has the package: it must cost
nothing and never raise, and Alembic itself is not fully imported yet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult

log = logging.getLogger("sqlane_sa.migrations")


def setup(plugin: Plugin) -> None:
    """Called by Alembic, 1.18 and later."""
    try:
        from alembic.util import DispatchPriority

        plugin.add_autogenerate_comparator(
            compare, "autogenerate", qualifier="postgresql", priority=DispatchPriority.FIRST
        )
    except Exception:
        log.warning("autogenerate will not write calls of sqlane_sa.migrations", exc_info=True)


def compare(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    """Runs only where env.py names the plugin in `autogenerate_plugins`."""
    from sqlane_sa.migrations.autogenerate import compare as compare_tables

    return compare_tables(context, upgrade_ops)
