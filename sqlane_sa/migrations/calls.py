"""The calls of `upgrade` and `downgrade` as source: what autogenerate writes, and what messages advise."""

from __future__ import annotations

from sqlane_sa.absent import migrate_command
from sqlane_sa.migrations import chain
from sqlane_sa.migrations.target import Target


def upgrade_call(at: Target, *, to: str, from_: str | None) -> str:
    return _call("upgrade", at, to, from_)


def downgrade_call(at: Target, *, to: str | None, from_: str) -> str:
    return _call("downgrade", at, to, from_)


def command(at: Target) -> str:
    """The command line that brings these tables to the newest revision."""
    return migrate_command(at.prefix, at.schema)


def _call(function: str, at: Target, to: str | None, from_: str | None) -> str:
    arguments = {
        "to": to and chain.short(to),
        "from_": from_ and chain.short(from_),
        "prefix": None if at.prefix == Target.prefix else at.prefix,
        "schema": at.schema,
    }
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)
    return f"migrations.{function}({given})"
