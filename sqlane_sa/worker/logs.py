"""The worker's log lines stay lines, whatever stands in a job's id, its name or an error's message."""

from __future__ import annotations

import logging

from sqlane_sa.values.text import printable


class OneLine(logging.Filter):
    """Escapes what is not printable in the arguments of a record: who enqueues a job, or can make a handler fail, may
    not write lines of their own into the log, nor control the terminal it is read in. DEBUG keeps its line breaks, for
    tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            keep = "\n" if record.levelno <= logging.DEBUG else ""
            record.args = tuple(_escaped(each, keep) for each in record.args)
        return True


def _escaped(argument: object, keep: str) -> object:
    return printable(str(argument), keep) if isinstance(argument, str | BaseException) else argument
