"""The command line: `sqlane`. Each command loads what it needs when it runs."""

from sqlane_sa.cli.group import main

__all__ = ["main"]
