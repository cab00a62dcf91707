"""The worker: loop, heartbeat, listener, sweeper, timer and handlers, each with one duty."""

from sqlane_sa.worker.worker import Worker

__all__ = ["Worker"]
