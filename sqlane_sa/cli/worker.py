"""`sqlane worker`: runs the jobs of a queue."""

from __future__ import annotations

from typing import Any

import click

from sqlane_sa.cli.logs import LEVELS, configure
from sqlane_sa.cli.options import Place, names_of, names_option, place_options


class Seconds(click.types.FloatParamType):
    """A float whose error says of what."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds, such as 60 or 0.5", param, ctx)


SECONDS: dict[str, Any] = {"type": Seconds(), "metavar": "SECONDS", "show_default": True}


@click.command(short_help="Run the jobs of a queue.")
@click.argument("path", metavar="MODULE:QUEUE")
@names_option("Serve these names only; may be repeated.")
@click.option("--concurrency", default=10, show_default=True, help="Handlers that run at a time.")
@click.option("--lease", default=60, help="How long a job is held without a renewal.", **SECONDS)
@click.option("--poll-interval", default=1, help="How often to look for due jobs.", **SECONDS)
@click.option("--shutdown-timeout", default=30, help="Patience with running handlers at the end.", **SECONDS)
@click.option("--stall-delay", default=30, help="Wait of a job whose worker died, doubled each time.", **SECONDS)
@click.option("--sweep-interval", default=15, help="How often to recover and clean up.", **SECONDS)
@click.option("--no-wakeups", is_flag=True, help="Only poll.")
@click.option("--worker-id", metavar="TEXT", help="Shown as the holder of jobs.  [default: host:pid:random]")
@click.option("--exit-when-stuck", is_flag=True, help="Exit 1 once every slot is past its timeout.")
@click.option("--until-idle", is_flag=True, help="Stop once nothing is due.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(LEVELS, case_sensitive=False),
    metavar="LEVEL",
    help=f"What to log: {', '.join(LEVELS)}.",
)
@place_options
def worker(
    path: str,
    names: tuple[str, ...],
    no_wakeups: bool,
    until_idle: bool,
    log_level: str,
    url: str | None,
    prefix: str | None,
    schema: str | None,
    **options: Any,
) -> None:
    """Run the jobs of MODULE:QUEUE, such as app.jobs:queue, until SIGTERM or SIGINT.

    The current folder is on the path. A second signal does not wait for running handlers, a third ends the process.
    Prefix and schema are the queue's own; --prefix and --schema are only compared with them.
    """
    from sqlane_sa.cli.database import connected
    from sqlane_sa.cli.loading import named_queue
    from sqlane_sa.worker.worker import Worker

    queue = named_queue(path, Place(url, prefix, schema))
    configure(log_level)
    size = max(options["concurrency"], 1)
    with connected(url, "sqlane worker", pool_size=size, patient=not until_idle) as engine:
        runner = Worker(engine, queue, names=names_of(names), wakeups=not no_wakeups, **options)
        if until_idle:
            runner.run_until_idle()
        else:
            runner.run()
