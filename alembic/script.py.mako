"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}

Locks: which lock the upgrade and the downgrade take on which existing table, and for how long.
"""

from __future__ import annotations

import sqlalchemy as sa
${imports if imports else ""}
from sqlane_sa.migrations import operations, record, target

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


# First of all `lock("jobs", ...)`, of sqlane_sa.migrations, with every table that is altered or dropped: it waits for
# none while it holds another. Adding a column is over at once; building an index over many jobs, or a check of them,
# is not, and enqueues wait for it.


def upgrade() -> None:
    op, at = operations(), target()
    ${upgrades if upgrades else "pass"}
    record(revision)


def downgrade() -> None:
    op, at = operations(), target()
    ${downgrades if downgrades else "pass"}
    # Not by its name above: in a copy of this file, an application sets it to a revision of its own.
    record(${repr(down_revision)})
