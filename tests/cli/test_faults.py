"""What goes wrong and can be foreseen: one sentence on stderr that names the next step, and no traceback."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa import migrations
from sqlane_sa.demo.server import Server
from tests.cli.conftest import Answer, Sqlane, command, problem

COMMANDS = [
    ("migrate",),
    ("migrate", "current"),
    ("stats",),
    ("worker", "app:queue"),
    ("failed",),
    ("retry", "id"),
    ("demo",),
]
HEAD = migrations.head()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of ours on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nobody_listens(
    sqlane: Sqlane, within: Sqlane, app: Callable[..., None], closed_port: int, words: tuple[str, ...]
) -> None:
    app()
    run = sqlane if words in (("stats",), ("worker", "app:queue")) else within
    # Without it a worker waits: see test_waiting.py.
    words += ("--until-idle",) if words[0] == "worker" else ()
    said = problem(run(*words, "--url", f"postgresql://me:secret@127.0.0.1:{closed_port}/shop"))
    refused = f"cannot connect to me@127.0.0.1:{closed_port}/shop: Connection refused"
    assert said == f"{refused}; see that the server runs there, or correct the URL"


@pytest.mark.parametrize("driver", ["psycopg2", "pg8000"])
def test_nobody_listens_to_other_drivers(within: Sqlane, closed_port: int, driver: str) -> None:
    said = problem(within("stats", "--url", f"postgresql+{driver}://me:secret@127.0.0.1:{closed_port}/shop"))
    assert said.startswith(f"cannot connect to me@127.0.0.1:{closed_port}/shop: ")
    assert said.endswith("; see that the server runs there, or correct the URL")
    assert "secret" not in said


def test_no_server_at_the_socket(within: Sqlane, tmp_path: Path) -> None:
    said = problem(within("stats", "--url", f"postgresql:///shop?host={tmp_path}"))
    assert said.startswith(f"cannot connect to the database shop on the server with its socket in {tmp_path}: ")
    assert "No such file or directory; see that the server runs there" in said


def test_the_environment_names_the_server(within: Sqlane, closed_port: int) -> None:
    said = problem(within("stats", "--url", "postgresql://", PGHOST="127.0.0.1", PGPORT=str(closed_port)))
    assert said.startswith(
        f'cannot connect to the default server: connection to server at "127.0.0.1", port {closed_port}'
    )


@pytest.fixture(scope="module")
def strict() -> Iterator[sa.URL]:
    """The URL of a server that asks for the password of everybody but its owner."""
    with Server(fsync=False, tcp=True) as server:
        engine = sa.create_engine(server.url(), poolclass=sa.NullPool)
        with engine.begin() as conn:
            conn.exec_driver_sql("CREATE ROLE clerk LOGIN PASSWORD 'right'")
        (server.log.parent / "data" / "pg_hba.conf").write_text("local all all trust\nhost all all all scram-sha-256\n")
        with engine.connect() as conn:
            conn.exec_driver_sql("SELECT pg_reload_conf()")
        yield sa.make_url(server.url(tcp=True))


class TestRefused:
    @pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
    @pytest.mark.parametrize(
        ("user", "password"), [("clerk", "wr:ong/@"), ("clerk", None), ("nobody", "right")], ids=str
    )
    def test_user_or_password(
        self, within: Sqlane, strict: sa.URL, driver: str, user: str, password: str | None
    ) -> None:
        url = strict.set(drivername=f"postgresql+{driver}", username=user, password=password)
        said = problem(within("stats", "--url", url.render_as_string(hide_password=False)))
        assert said.startswith(f"cannot connect to {user}@127.0.0.1:{url.port}/postgres: ")
        if (driver, password) == ("pg8000", None):
            assert said.endswith("pg8000 needs a password; add it to the URL")
            return
        assert said.endswith(
            "correct the user and password in the URL, or give the password in PGPASSWORD or ~/.pgpass"
        )
        assert "wr" not in said

    def test_no_right(self, within: Sqlane, strict: sa.URL) -> None:
        url = strict.set(username="clerk", password="right").render_as_string(hide_password=False)
        said = problem(within("migrate", "--url", url, "--schema", "new"))
        assert (
            "refused: permission denied for database postgres; grant the right to this user (docs/roles.md), or use"
            in said
        )


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_no_such_user_where_none_is_asked_for_a_password(within: Sqlane, database_url: str, driver: str) -> None:
    url = sa.make_url(database_url).set(drivername=f"postgresql+{driver}", username="nobody here")
    said = problem(within("stats", "--url", url.render_as_string(hide_password=False)))
    assert 'role "nobody here" does not exist; correct the user and password' in said


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("-csearch_path=nowhere", "no schema has been selected to create in; name a schema with --schema, or correct"),
        ("-cdefault_transaction_read_only=on", "in a read-only transaction; use the URL of the primary server"),
        (
            "-cbogus=1",
            'unrecognized configuration parameter "bogus"; see that the server runs there, or correct the URL',
        ),
    ],
)
def test_a_session_in_which_nothing_can_be_made(within: Sqlane, empty_url: str, option: str, said: str) -> None:
    url = sa.make_url(empty_url).update_query_dict({"options": option})
    assert said in problem(within("migrate", "--url", url.render_as_string(hide_password=False)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_no_room_for_a_script() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("migrate", "upgrade", "--sql"), stdout=full, stderr=subprocess.PIPE, text=True)
    assert problem(Answer(done.returncode, "", done.stderr)).endswith("; make some, or write elsewhere")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_no_such_database(within: Sqlane, database_url: str, driver: str) -> None:
    url = sa.make_url(database_url).set(drivername=f"postgresql+{driver}", database="nowhere")
    said = problem(within("stats", "--url", url.render_as_string(hide_password=False)))
    assert said.endswith('database "nowhere" does not exist; create the database, or correct the URL')


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "which database? Give --url, or set SQLANE_DATABASE_URL, for example to postgresql://"),
        ("shop", "the database URL cannot be understood; write it as postgresql://"),
        ("postgresql://h:port/d", "the port in the database URL is not a number; write it as postgresql://"),
        ("postgresql://u:p@ss@h/d", "the database URL has more than one @; write one that belongs to the user"),
        ("mysql://h/d", "the database URL is for 'mysql', and sqlane needs PostgreSQL; write it as postgresql://"),
        ("sqlite:///d", "the database URL is for 'sqlite', and sqlane needs PostgreSQL; write it as postgresql://"),
        ("postgresql+asyncpg://h/d", "asyncpg is an async driver, and commands need a plain one; write postgresql://"),
        ("postgresql+psycho://h/d", "SQLAlchemy knows no PostgreSQL driver 'psycho'; leave it out: postgresql://"),
        ("postgresql+pg8000://u:p@h/d?bogus=1", "the database URL has an option that cannot be used: "),
        (
            "postgresql://u@127.0.0.1/d?bogus=1",
            'cannot connect to u@127.0.0.1/d: invalid connection option "bogus"; see',
        ),
        ("postgresql+pg8000://h/d", "cannot connect to h/d: pg8000 needs a user; add it to the URL"),
    ],
)
def test_a_url_that_cannot_be(within: Sqlane, url: str, said: str) -> None:
    assert problem(within("stats", "--url", url)).startswith(said)
    assert problem(within("migrate", SQLANE_DATABASE_URL=url)).startswith(said)


@pytest.mark.parametrize("words", COMMANDS[:6], ids=" ".join)
def test_no_url(within: Sqlane, app: Callable[..., None], words: tuple[str, ...]) -> None:
    app()
    said = problem(within(*words))
    assert said.startswith("which database? Give --url, or set SQLANE_DATABASE_URL, for example to postgresql://user@")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_a_driver_that_is_not_installed(sqlane: Sqlane, tmp_path: Path, driver: str) -> None:
    (tmp_path / f"{driver}.py").write_text(f"raise ModuleNotFoundError('No module named {driver}')")
    said = problem(sqlane("stats", "--url", f"postgresql+{driver}://u@h/d"))
    assert said.startswith(f"the driver {driver} is not installed; pip install ")
    assert driver in said.partition("pip install")[2]


class TestSchema:
    def test_not_there(self, within: Sqlane, database_url: str) -> None:
        said = problem(within("stats", "--url", database_url, "--schema", "Not There"))
        assert said.startswith("the tables 'sqlane_*' in schema 'Not There' are not in the database")
        assert "run `sqlane migrate --schema 'Not There'`" in said

    @pytest.mark.parametrize("words", COMMANDS[2:6], ids=" ".join)
    def test_behind(self, within: Sqlane, app: Callable[..., None], empty_url: str, words: tuple[str, ...]) -> None:
        app()
        said = problem(within(*words, "--url", empty_url))
        assert said.startswith(f"the tables 'sqlane_*' are not in the database '{sa.make_url(empty_url).database}' on ")
        assert ", and this version of sqlane_sa needs" in said
        assert "run `sqlane migrate`" in said

    @pytest.mark.parametrize("words", [*COMMANDS[:1], *COMMANDS[2:6], ("migrate", "check")], ids=" ".join)
    def test_ahead(
        self, within: Sqlane, app: Callable[..., None], database_url: str, engine: sa.Engine, words: tuple[str, ...]
    ) -> None:
        with engine.begin() as conn:
            conn.exec_driver_sql("UPDATE sqlane_version SET version_num = 'sqlane_9999'")
        app()
        said = problem(within(*words, "--url", database_url))
        assert "sqlane_9999" in said
        assert HEAD in said
        assert said.endswith("; install the version that migrated it, or a later one")

    @pytest.mark.parametrize(
        ("option", "value"),
        [("--schema", ""), ("--schema", "x" * 64), ("--schema", "nul\0"), ("--prefix", "x" * 64), ("--prefix", "a\0")],
        ids=repr,
    )
    def test_names_that_cannot_be(self, within: Sqlane, database_url: str, option: str, value: str) -> None:
        said = problem(within("migrate", "--url", database_url, option, value))
        assert said.startswith(option.removeprefix("--") + "=")
