"""Every line of the performance goals in one table: `python -m tests.benchmarks`.

Read the figures as ratios: what is compared is measured in turn, in the same round, on the same machine. Other queues
come from a folder of scripts (--bench) that follow the protocol of `common.py`; those that are not there are skipped,
and said so. Without --server it starts one of its own, with fsync on.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import curves, machine, plots, report
from tests.benchmarks.bench import Bench, Line, Measured
from tests.benchmarks.ground import ground
from tests.benchmarks.lines import LINES

PEERS = "graphile,procrastinate,ref_psycopg,ref_sacore"


def main() -> None:
    # In order, on SIGTERM too: workers are processes of their own, which would stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = parsed()
    if options.list:
        for line in LINES.values():
            print(f"{line.name:20} {line.titled(options.jobs)}")
        return
    if options.again:
        show(options, *report.load(options.again))
        return
    with ground(options.server) as at:
        bench = Bench(at, jobs=options.jobs, limit=options.limit, folder=options.bench, peers=names(options.peers))
        measured = [Measured(LINES[name], LINES[name].titled(options.jobs)) for name in options.lines]
        about = machine.described(bench, options.rounds)
        for number in range(options.rounds):
            for one in measured:
                if number == 0 or not one.line.once:
                    note(f"round {number + 1}, {one.title}")
                    measure(bench, one, backwards=bool(number % 2))
                    keep(options.json, measured, about, {})
        drawn = curves.measure(bench, options.rounds, options.workers, note) if options.plots else {}
    keep(options.json, measured, about, drawn)
    show(options, [row for one in measured for row in one.rows()], about, drawn)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="the lines, and no more")
    parser.add_argument("--lines", type=lines, default=list(LINES), metavar="NAME,...", help="default: all")
    parser.add_argument("--peers", default=PEERS, metavar="NAME,...", help=f"of peers.json; default: {PEERS}")
    parser.add_argument("--bench", type=Path, metavar="FOLDER", help="holds peers.json and its scripts")
    parser.add_argument("--jobs", type=int, default=20_000, help="all sizes are multiples of it (default: 20000)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds of a drain, after which its rate is taken")
    parser.add_argument("--server", metavar="URL", help="postgresql://USER@HOST:PORT, without a database or password")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all that was measured")
    parser.add_argument("--from", dest="again", type=Path, metavar="FILE", help="show what such a file keeps")
    parser.add_argument("--markdown", action="store_true", help="the table as in docs/performance.md")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="measure the curves too, and draw them there")
    parser.add_argument("--workers", type=counts, default=curves.WORKERS, metavar="N,...", help="processes, in a plot")
    parser.add_argument("--png", action="store_true", help="PNG besides SVG")
    return parser.parse_args()


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def counts(text: str) -> list[int]:
    return [int(count) for count in names(text)]


def lines(text: str) -> list[str]:
    unknown = [name for name in names(text) if name not in LINES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no line {unknown[0]!r}; --list shows them")
    return names(text)


def measure(bench: Bench, one: Measured, *, backwards: bool) -> None:
    """One round: all sides in turn, the other way round in every other round. An error ends the line, not the run."""
    try:
        sides = one.line.sides(bench)
        if isinstance(sides, str):
            one.problem = f"skipped: {sides}"
            return
        for label in order(one.line, list(sides), backwards):
            one.samples.setdefault(label, [])
            one.samples[label].append(sides[label]())
    except Exception as error:
        one.problem = f"failed: {' '.join(str(error).split())}"


def order(line: Line, sides: Sequence[str], backwards: bool) -> list[str]:
    # The two sides of one run: the second is read off the first.
    return list(sides) if line.paired or not backwards else list(reversed(sides))


def keep(file: Path | None, measured: list[Measured], about: dict[str, str], drawn: curves.Curves) -> None:
    """After each line: a run that is interrupted is not lost."""
    if file:
        report.save(file, measured, about, drawn)


def show(options: argparse.Namespace, rows: list[report.Row], about: dict[str, str], drawn: curves.Curves) -> None:
    print(report.markdown(rows, about) if options.markdown else report.text(rows))
    if not options.markdown:
        print("\n" + "\n".join(f"{name}: {said}" for name, said in about.items()))
    if options.plots:
        for file in plots.draw(curves.as_curves(drawn), options.plots, ("svg", "png") if options.png else ("svg",)):
            note(f"drawn: {file}")


def note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
