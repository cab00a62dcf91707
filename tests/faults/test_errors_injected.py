"""Statements fail as they do among other sessions: deadlock, serialization failure, lock timeout, cancelled."""

from __future__ import annotations

import pytest

from tests.faults.conftest import StartLoad
from tests.faults.load import Load
from tests.support import wait_until

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)

CODES = {"40P01": "deadlock", "40001": "serialization failure", "55P03": "lock timeout", "57014": "cancelled"}
TABLES = ("sqlane_jobs", "sqlane_mutexes", "sqlane_payloads")

AT_RANDOM = """
CREATE FUNCTION break_some() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < 0.03 THEN
        RAISE EXCEPTION 'injected' USING ERRCODE = (ARRAY[{codes}])[1 + floor(random() * {n})::int];
    END IF;
    RETURN coalesce(NEW, OLD);
END $$"""
TRIGGER = """
CREATE TRIGGER broken BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION break_some()"""
# What becomes of the row is seen from outside: a sequence counts what is rolled back, too.
OTHERS = "SELECT count(*) FROM sqlane_jobs WHERE job_name = 'plain' AND status = 'completed' AND id <> :id"
FOR_ONE = """
CREATE SEQUENCE tries;
CREATE FUNCTION break_one() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = '{id}' AND OLD.status = '{before}' AND nextval('tries') > 0 THEN
        RAISE EXCEPTION 'injected' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$"""


def execute(under: Load, *statements: str) -> None:
    with under.engine.connect() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def test_errors_at_random(load: StartLoad, database_url: str) -> None:
    """Of every kind, in every write of jobs, keys and payloads, for the producer too."""
    under = load(database_url)
    codes = ", ".join(f"'{code}'" for code in CODES)
    triggers = [TRIGGER.format(table=table) for table in TABLES]
    execute(under, AT_RANDOM.format(codes=codes, n=len(CODES)), *triggers)
    wait_until(
        lambda: under.check_alive() or set(CODES) <= {getattr(e.orig, "sqlstate", "") for e in under.producer.errors},  # type: ignore[attr-defined]
        60,
        "all errors at the producer",
    )
    under.wait_for_progress(60)
    execute(under, *[f"DROP TRIGGER broken ON {table}" for table in TABLES])
    under.fault_ended()
    counts = under.finish("injected errors", f"{', '.join(CODES.values())}: 3 % of all row writes")
    assert counts.faults == {}


@pytest.mark.parametrize(
    ("before", "code"), [("pending", "40P01"), ("pending", "57014"), ("running", "40001"), ("running", "55P03")]
)
def test_an_error_always_for_one_row(load: StartLoad, database_url: str, before: str, code: str) -> None:
    """The others go on meanwhile; and it too, once it can."""
    under = load(database_url, workers=1)
    one = "the-one"
    execute(
        under,
        FOR_ONE.format(id=one, before=before, code=code),
        "CREATE TRIGGER broken BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION break_one()",
    )
    under.producer.enqueue_one(one)
    wait_until(lambda: under.check_alive() or under.scalar("SELECT is_called FROM tries"), 60, "a try")
    others = under.scalar(OTHERS, id=one)
    wait_until(lambda: under.check_alive() or under.scalar(OTHERS, id=one) >= others + 40, 60, "others of its name")
    assert under.scalar("SELECT finished_at FROM sqlane_jobs WHERE id = :id", id=one) is None
    execute(under, "DROP TRIGGER broken ON sqlane_jobs")
    under.fault_ended()
    counts = under.finish(f"{CODES[code]} for one row", f"each {before} write of it, while 40 others of its name ended")
    assert counts.faults == {}
