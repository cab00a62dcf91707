"""Tests that cannot pass behind a pooler in transaction mode, whatever the product does, and why."""

EXCEPTIONS: dict[str, str] = {}
