"""What a drain, and a worker, cannot serve is refused by an error of the package, before anything is claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import AutocommitError, DefinitionError, Queue, UnknownNameError, Worker
from sqlane_sa.testing import drain


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.fixture(autouse=True)
def definitions(queue: Queue) -> None:
    queue.job("n")(lambda payload: None)
    queue.define("elsewhere")


@pytest.mark.parametrize("limit", [2.5, "x", True, -1, [1], Silent()])
def test_limits(queue: Queue, engine: sa.Engine, limit: Any) -> None:
    with engine.begin() as conn:
        queue.enqueue(conn, "n")
    with pytest.raises(DefinitionError, match=r"^limit=.* is no number of jobs") as caught:
        drain(engine, queue, limit=limit)
    assert (caught.value.option, caught.value.value) == ("limit", limit)
    assert drain(engine, queue).completed == 1


@pytest.mark.parametrize("use", [drain, Worker])
@pytest.mark.parametrize("names", [5, "n", [], ["elsewhere"], Silent()])
def test_names(queue: Queue, engine: sa.Engine, use: Callable[..., object], names: Any) -> None:
    with pytest.raises(DefinitionError, match="names") as caught:
        use(engine, queue, names=names)
    assert caught.value.option == "names"


@pytest.mark.parametrize("use", [drain, Worker])
@pytest.mark.parametrize("name", [["n"], None, "nn", 5])
def test_one_name(queue: Queue, engine: sa.Engine, use: Callable[..., object], name: Any) -> None:
    with pytest.raises(UnknownNameError) as caught:
        use(engine, queue, names=["n", name])
    assert caught.value.name == name


@pytest.mark.parametrize("use", [drain, Worker])
@pytest.mark.parametrize("wrong", [None, "sqlane_", Queue, Silent()])
def test_what_is_no_queue(engine: sa.Engine, use: Callable[..., object], wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="is no Queue") as caught:
        use(engine, wrong)
    assert caught.value.option == "queue"


@pytest.mark.parametrize("options", [{"concurrency": Silent()}, {"worker_id": Silent()}, {"concurrency": 10**5000}])
def test_options_that_cannot_be_shown(queue: Queue, engine: sa.Engine, options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError) as caught:
        Worker(engine, queue, **options)
    assert caught.value.option in options


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_autocommit(queue: Queue, database_url: str, driver: str) -> None:
    url = sa.make_url(database_url).set(drivername=f"postgresql+{driver}")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as conn:
        with pytest.raises(AutocommitError, match="drain an Engine"):
            drain(conn, queue)
    with engine.execution_options(isolation_level="READ COMMITTED").begin() as conn:
        queue.enqueue(conn, "n")
    assert drain(engine, queue).completed == 1
