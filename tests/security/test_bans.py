"""What the package's own code never does, as searches through its syntax trees, each shown to find what it is for."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.security import bans

ROOT = Path(__file__).parents[2]
FILES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text())
    for folder in ("sqlane_sa", "alembic")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


class Rule(NamedTuple):
    """A ban, the files where it does not hold with how often, and code that it has to find, one finding a line."""

    ban: bans.Ban
    exceptions: dict[str, int]
    caught: str
    passes: str = ""


RULES = [
    Rule(
        bans.serializers,
        {},
        "import pickle\nfrom pickle import loads\nimport json, marshal\nimport os, dill.source\nfrom yaml import load",
        "import json\nfrom sqlane_sa.values import payload",
    ),
    Rule(
        bans.evaluators,
        {},
        "eval(row.payload)\nexec(code)\ncompile(a, b, 'exec')\n__import__(row.module)\nf = eval",
        "re.compile('a')\nconn.execute(x)\nself.exec(x)",
    ),
    Rule(
        bans.importers,
        # The package's own names, from a table in the file; and the module that the command line names.
        {"sqlane_sa/__init__.py": 1, "sqlane_sa/cli/loading.py": 1},
        "importlib.import_module(row.name)\nimport_module(name)\nrunpy.run_path(p)\npkgutil.resolve_name(n)\n"
        "pydoc.locate(n)\n__import__(n)",
        "import a\nfind_spec('rich')",
    ),
    Rule(
        bans.new_classes,
        {},
        "type(name, (Exception,), {})\nkind = getattr(builtins, name)\nkind = __builtins__[name]\nglobals()[name]()\n"
        "Exception.__subclasses__()\nsys.modules[name]",
        "type(error)\nglobals()[name] = 1\nraise ValueError(text)",
    ),
    Rule(
        bans.sql_at_call_time,
        {
            # `Statement` itself: the table names by the preparer, the rest from the module; and that compiled.
            "sqlane_sa/statement.py": 2,
            # Names by the preparer, in statements that take no parameters.
            "sqlane_sa/worker/listener.py": 1,
            "sqlane_sa/migrations/version.py": 1,
            # SQL of the file, in a loop or chosen at call time.
            "sqlane_sa/schema.py": 1,
            "alembic/versions/sqlane_0001.py": 1,
            "sqlane_sa/demo/promises.py": 1,
            "sqlane_sa/demo/schema.py": 1,
        },
        "def f(x): return text(f'SELECT {x}')\n"
        "def f(x): conn.exec_driver_sql('SELECT ' + x)\n"
        "def f(x): return Statement('SELECT %s' % x, {})\n"
        "def f(x): return sa.text('SELECT {}'.format(x))\n"
        "async def f(sql): await conn.exec_driver_sql(sql)\n"
        "f = lambda x: text(x)",
        "STATEMENT = text(f'SELECT {PART}')\ndef f(): return text('SELECT 1')\ndef g(): conn.execute(text(SELECT))\n"
        "def h(): return sa.text()",
    ),
    Rule(
        bans.wrong_times_in_sql,
        # The demo's own tables: its runs are timed within a transaction.
        {"sqlane_sa/demo/ledger.py": 2},
        "S = 'SELECT now()'\nS = f'x < NOW ( ) {y}'\nS = 'clock_timestamp()'\nS = 'DEFAULT current_timestamp'\n"
        "func.now()\nsa.func.clock_timestamp()\nsa.func.current_timestamp()",
        '"""now() is frozen."""\nS = "SELECT statement_timestamp() -- not now()"\ndef f():\n    """Not now()."""\n'
        "known(x)\nfunc.count()",
    ),
    Rule(
        bans.our_clocks,
        # The time in a ULID, which orders nothing but the jobs of one process.
        {"sqlane_sa/values/ids.py": 1},
        "time.time()\ndatetime.now(UTC)\ndatetime.datetime.utcnow()\ndate.today()\nfrom time import time\n"
        "time.time_ns()",
        "time.monotonic()\nrow.time\nfrom time import monotonic",
    ),
]
NAMES = [rule.ban.__name__ for rule in RULES]


def test_there_is_something_to_search() -> None:
    assert len(FILES) > 80
    assert {"sqlane_sa/store/claim.py", "alembic/versions/sqlane_0001.py"} < FILES.keys()


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_package_does_not(rule: Rule) -> None:
    found = {name: places for name, tree in FILES.items() if (places := list(rule.ban(tree)))}
    assert {name: len(places) for name, places in found.items()} == rule.exceptions, found


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_search_finds_what_it_is_for(rule: Rule) -> None:
    """A negative control: each line of bad code is found, and no line of good code."""
    lines = {line for line, _ in rule.ban(ast.parse(rule.caught))}
    assert lines == set(range(1, rule.caught.count("\n") + 2))
    assert list(rule.ban(ast.parse(rule.passes))) == []
