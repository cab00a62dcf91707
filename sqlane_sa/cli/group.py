"""The group of all commands."""

from __future__ import annotations

import click

from sqlane_sa.cli.demo import demo
from sqlane_sa.cli.doctor import doctor
from sqlane_sa.cli.failed import failed
from sqlane_sa.cli.migrate import migrate
from sqlane_sa.cli.problems import Explaining
from sqlane_sa.cli.retry import retry
from sqlane_sa.cli.stats import stats
from sqlane_sa.cli.worker import worker


@click.group(cls=Explaining, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sqlane_sa", prog_name="sqlane")
def main() -> None:
    """A job queue in the PostgreSQL database that your application already has."""


for command in (migrate, worker, stats, failed, retry, doctor, demo):
    main.add_command(command)
