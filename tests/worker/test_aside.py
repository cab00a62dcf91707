"""A job that could not be claimed is left alone, and forgotten by a look that would have found it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, OperationalError

from sqlane_sa import Queue, store
from sqlane_sa.worker import claims as claims_module
from sqlane_sa.worker.claims import Claims
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import Deadlines
from tests.worker.clock import Clock

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.job_name = 'odd' AND NEW.status = 'running' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"""


@pytest.fixture
def claims(engine: sa.Engine, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Claims]:
    """Its jobs may be tried again at once. There is one plain job for each look."""
    for pauses in ("LOCKED_PAUSES", "ODD_PAUSES"):
        monkeypatch.setattr(claims_module, pauses, (0.0, 0.0))
    for name in ("odd", "plain"):
        queue.job(name)(lambda payload: None)
    queue.job("keyed", mutex_keys=["k"])(lambda payload: None)
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("plain") for _ in range(4)))
    connector = Connector(engine, Deadlines(60.0))
    database = connector.database()
    yield Claims(database, queue, worker_id="w", lease=60.0)
    database.close()
    connector.close()


def plain(claims: Claims, name: str) -> int:
    return len(claims.plain_apart([(name, 0, 1)]))


def keyed(claims: Claims) -> int:
    return len(claims.keyed_apart(["keyed"], 1, "")[0])


def test_a_look_for_other_jobs_forgets_none(
    claims: Claims, queue: Queue, enqueue: Any, engine: sa.Engine, sql: Any, caplog: Any
) -> None:
    """Those that are locked or refused are said once, however often they are tried, and whatever is found meanwhile."""
    sql(REFUSE)
    enqueue("odd")
    taken = enqueue("keyed")
    with engine.connect() as rival:
        (claimed,) = store.claim(
            rival, queue.tables, candidate_ids=[taken], lock_token="rival", locked_by="rival", lease=60
        )
        enqueue("keyed", run_at=claimed.run_at.replace(year=2020))
        for _ in range(2):
            assert (keyed(claims), plain(claims, "odd"), plain(claims, "plain")) == (0, 0, 1)
        assert caplog.text.count("waits for a lock") == 1
        assert caplog.text.count("cannot be claimed and is left alone") == 1
        rival.rollback()
    assert keyed(claims) == 1


def test_what_another_worker_has_claimed_is_forgotten(
    claims: Claims, queue: Queue, enqueue: Any, engine: sa.Engine
) -> None:
    taken = enqueue("keyed")
    with engine.connect() as rival:
        (claimed,) = store.claim(
            rival, queue.tables, candidate_ids=[taken], lock_token="rival", locked_by="rival", lease=60
        )
        enqueue("keyed", run_at=claimed.run_at.replace(year=2020))
        keyed(claims)
        rival.commit()
    assert claims.apart
    assert keyed(claims) == 0
    assert not claims.apart


@pytest.mark.parametrize("look", ["plain", "keyed"])
def test_what_is_not_found_for_long_is_forgotten_by_any_look(
    claims: Claims, enqueue: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    sql(REFUSE)
    enqueue("odd")
    plain(claims, "odd")
    sql("DELETE FROM sqlane_jobs WHERE job_name = 'odd'")
    plain(claims, "odd")
    assert claims.apart
    monkeypatch.setattr(claims_module, "FORGET_AFTER", 0.0)
    assert plain(claims, "plain") if look == "plain" else not keyed(claims)
    assert not claims.apart


def test_a_refused_job_with_keys_is_looked_for_when_it_is_tried_again(claims: Claims, enqueue: Any, sql: Any) -> None:
    """No wake-up tells that its time has come."""
    sql(REFUSE.replace("'odd'", "'keyed'"))
    enqueue("keyed")
    claimed, next_ms = claims.keyed_apart(["keyed"], 1, "")
    assert not claimed
    assert next_ms is not None


def test_a_refused_job_without_keys_calls_for_no_look_at_keys(claims: Claims, enqueue: Any, sql: Any) -> None:
    """When it is tried again is none of theirs: they would look all the time."""
    sql(REFUSE)
    enqueue("odd")
    plain(claims, "odd")
    assert claims.keyed_apart(["keyed"], 1, "") == ([], None)


def test_what_was_claimed_before_an_outage_starts(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a search around a row: it runs in the database, and left out it would stall when its lease ends."""
    real = store.claim
    lost = OperationalError("", {}, ConnectionError("gone"), connection_invalidated=True)
    refused = DataError("", {}, ValueError("one of them"))
    ends: list[Exception | None] = [refused, None, lost, lost]

    def claim(*args: Any, **options: Any) -> Any:
        end = ends.pop(0)
        if end is not None:
            raise end
        return real(*args, **options)

    monkeypatch.setattr(store, "claim", claim)
    assert len(claims.plain_apart([("plain", 0, 4)])) == 2, "the first half"
    with pytest.raises(OperationalError):
        claims.plain_apart([("plain", 0, 4)])
    assert not ends


def test_leases_count_from_the_first_claim_of_a_search(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last one, those of the first would be taken for longer than they are."""
    clock = Clock().rules(monkeypatch, claims_module)
    real, waits, began = store.claim, [], []
    ends: list[Exception | None] = [DataError("", {}, ValueError("one of them")), None, None]

    def claim(conn: sa.Connection, *args: Any, **options: Any) -> Any:
        waits.append(conn.exec_driver_sql("SHOW lock_timeout").scalar_one())
        began.append(clock.now)
        clock.now += 0.1
        end = ends.pop(0)
        if end is not None:
            raise end
        return real(conn, *args, **options)

    monkeypatch.setattr(store, "claim", claim)
    assert len(claims.plain_apart([("plain", 0, 4)])) == 4
    assert claims.since == began[1]
    assert waits == ["50ms"] * 3, "each waits for a lock for a moment only"


def test_very_many_that_cannot_be_claimed_are_no_matter_of_rows(
    claims: Claims, enqueue: Any, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "MAX_ASIDE", 2)
    sql(REFUSE)
    for _ in range(4):
        enqueue("odd")
    with pytest.raises(DBAPIError, match="not this one"):
        for _ in range(4):
            plain(claims, "odd")
    assert len(claims._aside) == 2


def test_those_that_are_tried_again_take_no_more_than_half(
    claims: Claims, enqueue: Any, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may wait for a lock, before the others are tried at all."""
    sql(REFUSE)
    odd = {enqueue("odd") for _ in range(6)}
    tried: list[str] = []
    real = store.claim

    def claim(*args: Any, candidate_ids: Any, **options: Any) -> Any:
        tried.extend(candidate_ids)
        return real(*args, candidate_ids=candidate_ids, **options)

    monkeypatch.setattr(store, "claim", claim)
    while not odd <= {*tried}:
        plain(claims, "odd")
    tried.clear()
    assert claims.plain_apart([("odd", 0, 2), ("plain", 0, 2)])
    assert len(odd & {*tried}) == 2
