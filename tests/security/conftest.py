"""`within` runs a command in this process, as the tests of the command line do."""

from tests.cli.conftest import within

__all__ = ["within"]
