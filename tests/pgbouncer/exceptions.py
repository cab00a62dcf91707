"""Tests that cannot pass behind a pooler in transaction mode, whatever the product does, and why."""

LISTENS = "notifications do not arrive there; a worker polls"
OLD_SESSIONS = "a setting of the database reaches new sessions only, and the pooler goes on lending the old ones"

EXCEPTIONS = {
    "tests/worker/test_timezones.py": OLD_SESSIONS,
    "tests/worker/test_wakeups.py": LISTENS,
}
