"""An application with an Alembic environment as `alembic init` makes it, changed in the lines that the docs name."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from alembic.config import CommandLine, Config
from alembic.util import CommandError

from tests.support import with_driver

DOCS = Path(__file__).parents[2] / "docs" / "migrations.md"
LISTED = re.findall(r"```(python|ini|toml|sh)\n(.*?)```", DOCS.read_text(), re.S)
[FIRST_CALL, SECOND_CALL, PLUGIN, FROM_PYTHON, OWN_FILTER] = [block for kind, block in LISTED if kind == "python"]
[INI] = [block for kind, block in LISTED if kind == "ini"]
[TAKE_UP] = [block for kind, block in LISTED if kind == "sh"]
[TOML] = [block for kind, block in LISTED if kind == "toml"]

# Alembic 1.16 gave the separator another name, and reads pyproject.toml too.
NEW_NAMES = hasattr(Config, "get_alembic_option")
CONFIGURE = re.compile(r" *context\.configure\(\s*connection=connection,\s*target_metadata=target_metadata\s*\)\n")
METADATA = """
import sqlalchemy as sa
from sqlane_sa import Queue, migrations
queue = Queue({queue})
metadata = sa.MetaData()
sa.Table("users", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.Text, index=True))
target_metadata = {targets}
"""


class Project:
    """`template` is one of Alembic's; `installed` a folder that is searched for packages before all others."""

    def __init__(self, folder: Path, template: str, url: str, installed: Path | None = None) -> None:
        self.folder = folder
        self.installed = installed
        folder.mkdir()
        self.run("init", "-t", template, "alembic")
        self.driver = "asyncpg" if "async" in template else "psycopg"
        self.uses(url)
        # It would disable the loggers of the tests in this process.
        self.replace("alembic/env.py", re.compile(r"^    fileConfig\(.*\)$", re.M), "    pass")

    def uses(self, url: str) -> None:
        at = with_driver(url, self.driver).replace("%", "%%")
        self.replace("alembic.ini", re.compile(r"^sqlalchemy\.url = .*$", re.M), f"sqlalchemy.url = {at}")

    def knows(self, targets: str = "metadata", queue: str = "") -> None:
        """What `target_metadata` is in env.py, and how its `queue` is made."""
        text = METADATA.format(targets=targets, queue=queue)
        self.replace("alembic/env.py", re.compile(r"^target_metadata = .*$", re.M), text)

    def configures(self, block: str) -> None:
        """`context.configure` as a block of the docs has it."""
        indent = re.match(r" *", block)
        assert indent is not None
        found = CONFIGURE.search((self.folder / "alembic" / "env.py").read_text())
        assert found is not None
        own = re.match(r" *", found[0])
        assert own is not None
        lines = [own[0] + line.removeprefix(indent[0]) for line in block.splitlines()]
        self.replace("alembic/env.py", CONFIGURE, "\n".join(lines) + "\n")

    def has_branch(self) -> None:
        """The docs' lines of the third door."""
        if (self.folder / "pyproject.toml").exists():
            file = self.folder / "pyproject.toml"
            file.write_text(file.read_text().rstrip() + "\n" + TOML)
        else:
            old_name = re.compile(r"^(version_)?path_separator = .*$", re.M)
            self.replace("alembic.ini", old_name, INI if NEW_NAMES else INI.replace("path_sep", "version_path_sep"))

    def replace(self, name: str, old: re.Pattern[str], new: str) -> None:
        file = self.folder / name
        text, count = old.subn(lambda _: new, file.read_text())
        assert count == 1, f"{old.pattern} is {count} times in {name}"
        file.write_text(text)

    def revision(self, message: str, body: str | None = None, *options: str) -> Path:
        """Make a revision; `body` takes the place of its functions. Returns its file."""
        before = set(self.versions.glob("*.py"))
        self.run("revision", "-m", message, *options)
        [file] = set(self.versions.glob("*.py")) - before
        if body is not None:
            head, _, _ = file.read_text().partition("def upgrade")
            file.write_text(head + body)
        return file

    @property
    def versions(self) -> Path:
        return self.folder / "alembic" / "versions"

    def run(self, *arguments: str) -> str:
        """The output of the alembic command. Raises `CommandError`, with what a process of its own wrote to stderr."""
        return self._run_here(*arguments) if self.installed is None else self._run_installed(*arguments)

    def _run_here(self, *arguments: str) -> str:
        """In this process: a third of the time."""
        options = CommandLine("alembic").parser.parse_args(arguments)
        function, positional, named = options.cmd
        output = StringIO()
        path = sys.path.copy()
        with contextlib.chdir(self.folder):
            more = {"toml_file": "pyproject.toml"} if NEW_NAMES else {}
            config = Config("alembic.ini", stdout=output, output_buffer=output, cmd_opts=options, **more)  # type: ignore[arg-type]
            try:
                values = {name: getattr(options, name, None) for name in named}
                function(config, *(getattr(options, name, None) for name in positional), **values)
            finally:
                # `prepend_sys_path` of alembic.ini.
                sys.path[:] = path
        return output.getvalue()

    def _run_installed(self, *arguments: str) -> str:
        """In a process of its own, which finds the package in `installed`."""
        search = os.pathsep.join([str(self.installed), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": search}
        command = [sys.executable, "-W", "error", "-m", "alembic", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise CommandError(done.stdout + done.stderr)
        return done.stdout
