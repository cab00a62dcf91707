"""The options that type checkers know of."""

import asyncio
import dataclasses
import functools
import inspect

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqlane_sa import DefinitionError, Queue
from sqlane_sa.queue import JobHandle
from sqlane_sa.values.definition import Definition
from sqlane_sa.values.options import DefinitionOptions, JobOptions


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_options_that_nobody_has(queue: Queue) -> None:
    with pytest.raises(DefinitionError, match="no option 'retries'; a definition takes max_attempts, backoff"):
        queue.job("n", retries=3)
    for define in (queue.job, queue.define):
        with pytest.raises(
            DefinitionError, match=r"'max_attemps'; did you mean 'max_attempts'\? A definition takes max"
        ):
            define("n", max_attemps=3)
    with pytest.raises(DefinitionError, match="no option 'handler'"):
        queue.define("n", handler=print)
    assert queue.definitions == {}


def test_options_are_those_of_the_values(queue: Queue) -> None:
    """What type checkers know is what is taken."""
    fields = {field.name for field in dataclasses.fields(Definition) if field.init} - {"name", "handler"}
    assert set(DefinitionOptions.__annotations__) == fields
    parameters = inspect.signature(Queue.new).parameters.values()
    assert set(JobOptions.__annotations__) == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_a_mistyped_option_of_a_job_is_named_with_the_method_that_was_called(queue: Queue) -> None:
    """Whose session is never touched: the options come first."""
    handle, session = queue.define("n"), Session()
    for enqueue in (queue.enqueue, functools.partial(JobHandle.enqueue, handle)):
        arguments = (session, "n") if enqueue == queue.enqueue else (session,)
        with pytest.raises(TypeError) as caught:
            enqueue(*arguments, {}, dely=1)
        assert str(caught.value) == (
            "enqueue() has no option 'dely'; did you mean 'delay'? "
            "It takes delay, run_at, priority, mutex_keys, max_attempts, id"
        )
    with pytest.raises(TypeError, match=r"^aenqueue\(\) has no option 'nonsense'; it takes delay, run_at"):
        asyncio.run(handle.aenqueue(AsyncSession(), {}, nonsense=1))
    with pytest.raises(TypeError, match=r"new\(\) got an unexpected keyword argument 'dely'"):
        queue.new("n", dely=1)
