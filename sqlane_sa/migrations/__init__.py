"""The tables' migrations: apply them directly, or inside an application's own Alembic chain.

Directly, in a script or at a process's start: `apply(engine, queue)`, `revert`, `current`, `check`.
In a revision of one's own: `upgrade("sqlane_0001")` and `downgrade()` in the functions of these names.
As a branch of one's own Alembic environment: add `folder() / "versions"` to `version_locations`.

`target`, `operations`, `record` and `set_storage` are for the packaged revisions themselves.
"""

from sqlane_sa.migrations.chain import folder, head
from sqlane_sa.migrations.embedded import downgrade, upgrade
from sqlane_sa.migrations.runner import apply, check, current, revert
from sqlane_sa.migrations.storage import set_storage
from sqlane_sa.migrations.target import Target, operations, target
from sqlane_sa.migrations.version import record

__all__ = [
    "Target",
    "apply",
    "check",
    "current",
    "downgrade",
    "folder",
    "head",
    "operations",
    "record",
    "revert",
    "set_storage",
    "target",
    "upgrade",
]
