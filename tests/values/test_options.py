"""The options that type checkers know of."""

import dataclasses
import inspect

import pytest

from sqlane_sa import DefinitionError, Queue
from sqlane_sa.values.definition import Definition
from sqlane_sa.values.options import DefinitionOptions, JobOptions


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_options_that_nobody_has(queue: Queue) -> None:
    with pytest.raises(DefinitionError, match="no option 'max_retries'; a definition takes max_attempts, backoff"):
        queue.job("n", max_retries=3)
    with pytest.raises(DefinitionError, match="no option 'handler'"):
        queue.define("n", handler=print)
    assert queue.definitions == {}


def test_options_are_those_of_the_values(queue: Queue) -> None:
    """What type checkers know is what is taken."""
    fields = {field.name for field in dataclasses.fields(Definition) if field.init} - {"name", "handler"}
    assert set(DefinitionOptions.__annotations__) == fields
    parameters = inspect.signature(Queue.new).parameters.values()
    assert set(JobOptions.__annotations__) == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
