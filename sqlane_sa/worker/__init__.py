"""The worker: loop, heartbeat, listener, sweeper, timer and handlers, each with one duty."""

import logging

from sqlane_sa.worker.logs import OneLine
from sqlane_sa.worker.worker import Worker

logging.getLogger("sqlane_sa.worker").addFilter(OneLine())

__all__ = ["Worker"]
