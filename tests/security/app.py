"""A queue whose handlers know secrets, as a module of the application's; the secrets come from the environment."""

import os

from sqlane_sa import Queue

LOCAL, MESSAGE, MORE, CAUSE = (os.environ[f"CANARY_{name}"] for name in ("LOCAL", "MESSAGE", "MORE", "CAUSE"))

queue = Queue()


def inner(secret):
    raise KeyError(CAUSE)


@queue.job("leak", max_attempts=2, backoff=lambda attempt: 0, failure_job="after")
def leak(payload):
    a_local = LOCAL
    try:
        inner(a_local)
    except KeyError as error:
        raise ValueError(f"{MESSAGE}\n{MORE}") from error


@queue.job("leak_async", max_attempts=1)
async def leak_async(payload):
    leak(payload)


@queue.job("leak_nothing")
def leak_nothing(payload):
    assert payload


@queue.job("after")
def after(payload):
    assert payload["error"]
