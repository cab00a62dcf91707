"""`sqlane migrate`; as a process where that adds something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from tests.cli.conftest import Sqlane, Start, ended, problem

HEAD = migrations.head()
NOTHING = "base (not migrated yet; `sqlane migrate` makes the tables)\n"


def tables_in(url: str, schema: str) -> set[str]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    return set(sa.inspect(engine).get_table_names(schema=schema))


def run_script(url: str, script: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        # Without parameters, psycopg sends a script as it is.
        conn.connection.cursor().execute(script)


def test_bare_it_migrates_once(sqlane: Sqlane, empty_url: str) -> None:
    done = f"sqlane_* in schema public: migrated from base to {HEAD}\n"
    assert sqlane("migrate", SQLANE_DATABASE_URL=empty_url) == (0, done, "")
    there = f"sqlane_* in schema public: already at {HEAD}\n"
    assert sqlane("migrate", "--url", empty_url) == (0, there, "")
    assert tables_in(empty_url, "public") == {table.name for table in Queue().tables.metadata.tables.values()}


def test_up_down_current_and_check(within: Sqlane, empty_url: str) -> None:
    at = {"SQLANE_DATABASE_URL": empty_url}
    assert within("migrate", "current", **at) == (0, NOTHING, "")
    assert "not in the database" in problem(within("migrate", "check", **at))
    assert tables_in(empty_url, "public") == set()
    assert within("migrate", "upgrade", "0001", **at).out.endswith("migrated from base to sqlane_0001\n")
    assert within("migrate", "current", **at) == (0, f"{HEAD} (head)\n", "")
    assert within("migrate", "check", **at).out == f"sqlane_* in schema public: at {HEAD}, as this version needs\n"
    down = f"sqlane_* in schema public: migrated from {HEAD} to base\n"
    assert within("migrate", "downgrade", "base", **at) == (0, down, "")
    assert within("migrate", "downgrade", "base", **at) == (0, "sqlane_* in schema public: already at base\n", "")
    assert tables_in(empty_url, "public") == set()


@pytest.mark.parametrize("schema", ["Upper Case", 'a "quoted" one', "100%s", "it's", "naïve"])
def test_any_schema_and_prefix(within: Sqlane, empty_url: str, schema: str) -> None:
    place = ("--url", empty_url, "--prefix", "My%", "--schema", schema)
    assert within("migrate", *place) == (0, f"My%* in schema {schema}: migrated from base to {HEAD}\n", "")
    elsewhere = within("migrate", "current", "--url", empty_url, "--prefix", "shop_").out
    assert elsewhere == NOTHING.replace("migrate`", "migrate --prefix shop_`")
    assert "My%jobs" in tables_in(empty_url, schema)
    assert within("stats", *place) == (0, "the queue is empty: nothing waits, runs or has failed\n", "")
    assert within("migrate", "downgrade", "base", *place).code == 0
    assert tables_in(empty_url, schema) == set()


def test_options_before_and_after_the_command(within: Sqlane, empty_url: str) -> None:
    """Those after it win."""
    before = ("migrate", "--url", empty_url, "--schema", "before", "--prefix", "p_", "upgrade")
    assert within(*before).out.startswith("p_* in schema before:")
    assert within(*before, "--schema", "after").out.startswith("p_* in schema after:")
    assert tables_in(empty_url, "public") == set()


def test_the_schema_of_the_connection_is_named(within: Sqlane, empty_url: str) -> None:
    run_script(empty_url, "CREATE SCHEMA jobs")
    url = sa.make_url(empty_url).update_query_dict({"options": "-csearch_path=jobs"})
    found = within("migrate", "--url", url.render_as_string(hide_password=False))
    assert found.out == f"sqlane_* in schema jobs: migrated from base to {HEAD}\n"


@pytest.mark.parametrize("schema", [None, 'a "quoted" 100%s'])
def test_the_script_does_what_the_command_does(within: Sqlane, empty_url: str, schema: str | None) -> None:
    place = () if schema is None else ("--schema", schema)
    up = within("migrate", "upgrade", "--sql", *place)
    assert (up.code, up.err) == (0, "")
    run_script(empty_url, up.out)
    assert within("migrate", "check", "--url", empty_url, *place).code == 0
    down = within("migrate", "downgrade", "base", "--sql", *place)
    assert (down.code, down.err) == (0, "")
    run_script(empty_url, down.out)
    assert within("migrate", "current", "--url", empty_url, *place).out.startswith("base (")


def test_the_script_from_a_revision_on(sqlane: Sqlane, within: Sqlane) -> None:
    whole = sqlane("migrate", "upgrade", "--sql", "--from", "base").out
    assert "CREATE TABLE" in whole
    assert whole == within("migrate", "--prefix", "sqlane_", "upgrade", "--sql").out
    nothing = within("migrate", "upgrade", "--sql", "--from", HEAD)
    assert nothing.code == 0
    assert "CREATE" not in nothing.out
    wrong_way = problem(within("migrate", "upgrade", "base", "--sql", "--from", HEAD))
    assert wrong_way == f"from {HEAD} to base goes the wrong way; use `sqlane migrate downgrade`"
    assert "--from goes with --sql only" in problem(within("migrate", "upgrade", "--from", HEAD))


def test_six_at_once(start: Start, empty_url: str) -> None:
    """One migrates; all end well and say what they found."""
    answers = [ended(process) for process in [start("migrate", "--url", empty_url) for _ in range(6)]]
    assert [(answer.code, answer.err) for answer in answers] == [(0, "")] * 6
    outcomes = sorted(answer.out.partition(": ")[2] for answer in answers)
    # Each says where it began by what it read first, and one only can have begun there and done the work.
    assert outcomes == [f"already at {HEAD}\n"] * 5 + [f"migrated from base to {HEAD}\n"]


def test_an_unknown_revision_names_those_there_are(within: Sqlane, empty_url: str) -> None:
    said = problem(within("migrate", "upgrade", "9999", "--url", empty_url))
    assert said.startswith("revision '9999' is not known; this version of sqlane_sa has sqlane_0001")


def test_a_table_in_use_is_not_waited_for(within: Sqlane, database_url: str, engine: sa.Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("LOCK TABLE sqlane_jobs IN ACCESS SHARE MODE")
        said = problem(within("migrate", "downgrade", "base", "--url", database_url))
    assert said.startswith(f"the tables 'sqlane_*' stay at revision {HEAD}: another transaction uses one")
    assert within("migrate", "current", "--url", database_url).out == f"{HEAD} (head)\n"


def test_the_script_that_is_installed(empty_url: str) -> None:
    """`sqlane` and `python -m sqlane_sa` are the same."""
    script = Path(sys.executable).with_name("sqlane")
    done = subprocess.run([script, "migrate", "current", "--url", empty_url], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, NOTHING, "")


def test_a_script_without_a_command(within: Sqlane) -> None:
    assert within("migrate", "--sql") == within("migrate", "upgrade", "--sql")
    misplaced = within("migrate", "--sql", "upgrade")
    assert misplaced.code != 0
    assert "--sql comes behind the command: sqlane migrate upgrade --sql" in misplaced.err
