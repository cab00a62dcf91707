"""A test process that hangs prints the stacks of its threads and ends.

pytest-timeout interrupts the main thread, once in a test: the ends of fixtures may then wait for ever for a thread or a
lock. This watch is a thread of C, which needs no lock of Python's.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Generator

import pytest

# Longer than the timeout of a test, so that its error is seen first; seconds.
AFTER_A_TIMEOUT = 60.0


class HangWatch:
    """A plugin for the process that runs tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._default = float(config.getini("timeout"))
        # Made before pytest captures what is written to the original.
        self._stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)

    def _arm(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr)

    def _phase(self, item: pytest.Item) -> Generator[None, object, object]:
        own = item.get_closest_marker("timeout")
        self._arm((own.args[0] if own else self._default) + AFTER_A_TIMEOUT)
        return (yield)

    # Each phase by itself: pytest disarms when a test fails.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item))

    def pytest_runtest_logfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()
