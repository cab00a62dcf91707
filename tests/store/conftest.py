"""The store's tests: `any_conn` for what one connection shows, `engine` where there have to be two."""

from tests.drivers import *  # noqa: F403
from tests.wakeups import *  # noqa: F403
