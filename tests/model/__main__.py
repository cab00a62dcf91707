"""`python -m tests.model`: more sequences than CI has time for, or every permutation, on a server of its own.

    python -m tests.model --sequences 10000             other sequences than CI's, from a random seed that it prints
    python -m tests.model --sequences 10000 --seed 7    those of a seed; a failing one is printed as Python steps
    python -m tests.model --permutations                every pair at every barrier, and every triple
    python -m tests.model --sequences 500 --bug NAME    with a seeded bug of `tests/model/bugs.py`

It exits with 1 where something failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import nullcontext

import sqlalchemy as sa

from sqlane_sa import Queue, migrations
from sqlane_sa.demo.server import Server
from tests.conftest import SETTINGS, memory_folder
from tests.model import bugs
from tests.model.machine import STEPS, run_sequences
from tests.model.permutations import Stage, pairs, play_pairs, triples

BATCH = 500
"""Sequences of one seed; hypothesis keeps what it has tried, and gets slow and large with thousands."""


def main() -> None:
    options = arguments()
    with Server(fsync=False, settings=SETTINGS, parent=memory_folder()) as server:
        engine = sa.create_engine(server.url())
        migrations.apply(engine, Queue())
        if options.bug:
            with engine.begin() as conn:
                bugs.alter(options.bug, conn)
        with bugs.seeded(options.bug) if options.bug else nullcontext():
            if options.permutations:
                every_permutation(engine)
            else:
                many_sequences(engine, options.sequences, options.seed, options.steps)
        engine.dispose()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--steps", type=int, default=STEPS, help="of a sequence, at most")
    parser.add_argument("--permutations", action="store_true")
    parser.add_argument("--bug", choices=bugs.BUGS)
    return parser.parse_args()


def many_sequences(engine: sa.Engine, n: int, seed: int, steps: int) -> None:
    print(f"{n} sequences of at most {steps} steps, seed {seed}", flush=True)
    started = time.monotonic()
    for done in range(0, n, BATCH):
        batch, its_seed = min(BATCH, n - done), seed + done // BATCH
        try:
            run_sequences(engine, batch, random=its_seed, steps=steps)
        except Exception as problem:
            for line in (*getattr(problem, "__notes__", ()), "", f"{type(problem).__name__}: {problem}"):
                print(line)
            print(f"again: --sequences {batch} --seed {its_seed} --steps {steps}")
            sys.exit(1)
        took = time.monotonic() - started
        print(f"{done + batch} as the model says: {took:.0f} s, {(done + batch) / took:.1f} sequences/s", flush=True)


def every_permutation(engine: sa.Engine) -> None:
    started = time.monotonic()
    stage = Stage(engine)
    try:
        played = play_pairs(stage, list(pairs()))
        for case in triples():
            played += stage.play(case)
    except AssertionError as problem:
        print(problem)
        sys.exit(1)
    finally:
        stage.close()
    print(f"{played} cases, each with the outcome of a serial order: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
