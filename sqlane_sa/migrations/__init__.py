"""The tables' migrations: apply them directly, or inside an application's own Alembic chain.

In a revision of one's own: `upgrade("0001")` and `downgrade(from_="0001")` in the functions of these names. Alembic's
autogenerate writes the calls, where env.py names the plugin "sqlane_sa".
As a branch of one's own Alembic environment: add `folder() / "versions"` to `version_locations`.
Directly, in a script or at a process's start: `apply(engine, queue)`, `revert`, `current`, `check`; `sql` as a script.
`include_name` and `include_object` keep autogenerate away from the tables.

`target`, `operations`, `lock`, `record` and `set_storage` are for the packaged revisions themselves.
"""

# Before all that loads Alembic.
from sqlane_sa.migrations import quiet as quiet

# isort: split
from sqlane_sa.migrations.chain import folder, head
from sqlane_sa.migrations.embedded import downgrade, upgrade
from sqlane_sa.migrations.filters import include_name, include_object
from sqlane_sa.migrations.patience import lock
from sqlane_sa.migrations.runner import apply, check, current, revert
from sqlane_sa.migrations.script import sql
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
    "include_name",
    "include_object",
    "lock",
    "operations",
    "record",
    "revert",
    "set_storage",
    "sql",
    "target",
    "upgrade",
]
