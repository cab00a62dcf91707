"""The tests of enqueue: `any_conn` for what every driver has to do alike."""

from tests.drivers import *  # noqa: F403
