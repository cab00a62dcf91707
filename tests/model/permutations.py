"""Two and three sessions on one job, in every order, with a barrier before each statement of the first.

At the barrier the next session runs its operation in a transaction of its own, until it has committed or waits for a
lock; then the first goes on and commits, or rolls back. The results and the tables must be those of some serial order.
A write that found the row locked, and said that it changed nothing, counts as not made.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.model.observed import compare, observe, shape
from tests.model.operations import TICK, Operation
from tests.model.reference import Model
from tests.model.scenes import (
    ASIDE,
    ENDS,
    NEW,
    NEW_KEYLESS,
    OLD,
    OLD_KEYLESS,
    OPERATIONS,
    ROW,
    ROW_KEYLESS,
    SCENES,
    TABLE_NAMES,
    prepare,
)
from tests.support import wait_until


class Case(NamedTuple):
    """`rivals` start at the barrier before statement `barrier` of `first`; None is after its last one."""

    scene: str
    first: str
    rivals: tuple[str, ...]
    barrier: int | None
    commits: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return (self.first, *self.rivals)


class Stage:
    """The connections and the saved scenes. The database is this stage's alone."""

    def __init__(self, engine: sa.Engine) -> None:
        self.admin = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.first = engine.connect()
        self.rivals = [engine.connect() for _ in range(2)]
        self.pids = [self._pid(conn) for conn in self.rivals]
        self.threads = ThreadPoolExecutor(2)
        try:
            self._save_all()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        # After a case that failed a rival may wait for what the first still has locked.
        self.first.close()
        self.threads.shutdown()
        for conn in (self.admin, *self.rivals):
            conn.close()

    def _pid(self, conn: sa.Connection) -> int:
        pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        conn.rollback()
        return int(pid)

    def _save_all(self) -> None:
        self.saved_at = time.monotonic()
        self.before = {scene: self._save(f"scene_{n}", scene) for n, scene in enumerate(SCENES)}

    def bring_back(self, scene: str) -> Model:
        """The rows of a scene, and what they say. They must be young: their times are compared in ticks from now."""
        if time.monotonic() - self.saved_at > TICK / 4:
            self._save_all()
        self.admin.exec_driver_sql(self.before[scene])
        return observe(self.admin)

    def _save(self, schema: str, scene: str) -> str:
        """Prepare a scene and keep its rows; the SQL that brings them back."""
        clear = "; ".join(f"DELETE FROM sqlane_{name}" for name in TABLE_NAMES)
        self.admin.exec_driver_sql(clear)
        with self.first.begin():
            prepare(self.first, scene)
        keep = (f"CREATE TABLE {schema}.{name} AS TABLE sqlane_{name}" for name in TABLE_NAMES)
        self.admin.exec_driver_sql(
            "; ".join((f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"CREATE SCHEMA {schema}", *keep))
        )
        restore = (f"INSERT INTO sqlane_{name} TABLE {schema}.{name}" for name in TABLE_NAMES)
        return "; ".join((clear, *restore))

    def play(self, case: Case) -> bool:
        """Whether the barrier was reached. Raises AssertionError for an outcome of no serial order."""
        before = self.bring_back(case.scene)
        rivals: list[Future[Any]] = []
        with self.at_statement(case.barrier, lambda: rivals.extend(self.start(case))):
            results = [OPERATIONS[case.first].run(self.first)]
        if case.barrier is None:
            rivals.extend(self.start(case))
        (self.first.commit if case.commits else self.first.rollback)()
        results += [rival.result(timeout=60) for rival in rivals]
        if not rivals:
            return False
        judge(case, before, results, observe(self.admin))
        return True

    def play_alone(self, scene: str, operation: Operation) -> None:
        """One operation by itself: result, tables and times are those of the model."""
        model = self.bring_back(scene)
        result = self.run(self.first, operation)
        predicted = operation.predict(model, result)
        assert operation.agree(result, predicted), f"{scene}, {operation}: returned {result!r}, not {predicted!r}"
        compare(model, seen := observe(self.admin))
        assert not seen.violations or operation is ROW["delete by hand"], seen.violations

    def start(self, case: Case) -> Iterator[Future[Any]]:
        """Each rival after the one before it has ended, or waits for a lock."""
        for name, conn, pid in zip(case.rivals, self.rivals, self.pids, strict=False):
            future = self.threads.submit(self.run, conn, OPERATIONS[name])
            wait_until(lambda future=future, pid=pid: future.done() or self.waits(pid), message=f"{name} of {case}")
            yield future

    def run(self, conn: sa.Connection, operation: Operation) -> Any:
        with conn.begin():
            return operation.run(conn)

    def waits(self, pid: int) -> bool:
        return bool(self.admin.execute(WAITS, {"pid": pid}).scalar_one())

    def at_statement(self, number: int | None, action: Callable[[], None]) -> Any:
        return Barrier(self.first, number, action)


WAITS = sa.text("SELECT pg_blocking_pids(:pid) <> '{}'")


class Barrier:
    """Within the block, `action` runs before the statement of that number on the connection."""

    def __init__(self, conn: sa.Connection, number: int | None, action: Callable[[], None]) -> None:
        self.conn, self.number, self.action, self.sent = conn, number, action, 0

    def __enter__(self) -> None:
        sa.event.listen(self.conn, "before_cursor_execute", self.count)

    def __exit__(self, *error: object) -> None:
        sa.event.remove(self.conn, "before_cursor_execute", self.count)

    def count(self, *more: object) -> None:
        self.sent += 1
        if self.sent - 1 == self.number:
            self.action()


def judge(case: Case, before: Model, results: Sequence[Any], seen: Model) -> None:
    done = list(zip(case.names, results, strict=True))
    if not case.commits:
        done = done[1:]
    if case.scene.startswith("again"):
        accepted = [name for name, result in done if name in OLD | OLD_KEYLESS and not is_idle(result)]
        assert not accepted, f"{case}: a stale write was accepted: {accepted}"
    ended = [name for name, result in done if has_ended(name, result)]
    ends = ended_starts(ended, case.scene)
    assert len(ends) == len(set(ends)), f"{case}: one start has ended twice: {ended}"
    if "delete by hand" not in case.names:
        assert not seen.violations, f"{case}: {seen.violations}"
    outcome = ([result for _, result in done], shape(seen, TICK))
    outcomes = list(serial_outcomes(before, done))
    assert outcome in outcomes, f"{case}: {outcome} is none of {outcomes}"


def has_ended(name: str, result: Any) -> bool:
    """A recovery is followed by other steps of the same transaction."""
    return bool(result[1] if name in ("recover", "take over") else result) and name in ENDS


def ended_starts(names: Sequence[str], scene: str) -> list[str]:
    """The token of the start that each has ended. Only a take-over lets another recovery follow: they count as one."""
    tokens = [name[:3] for name in names if name not in ROW]
    recovered = [] if len(tokens) == len(names) else ["old" if scene == "expired" else "new"]
    return tokens + recovered


def serial_outcomes(before: Model, done: Sequence[tuple[str, Any]]) -> Iterator[tuple[list[Any], Any]]:
    """Results and tables of every order, each with and without the operations that changed nothing."""
    idle = [n for n, (_, result) in enumerate(done) if is_idle(result)]
    for left_out in itertools.chain.from_iterable(itertools.combinations(idle, n) for n in range(len(idle) + 1)):
        for sequence in itertools.permutations(n for n in range(len(done)) if n not in left_out):
            model = before.copy()
            results = [result for _, result in done]
            for n in sequence:
                results[n] = OPERATIONS[done[n][0]].predict(model, done[n][1])
                model.remove_all()
            yield results, shape(model, TICK)


def is_idle(result: Any) -> bool:
    return all(map(is_idle, result)) if isinstance(result, (list, tuple)) else not result


def pairs(scenes: Sequence[str] = SCENES) -> Iterator[tuple[str, str, str]]:
    """(scene, first, rival) of all that touch the same rows; two stale writes do not touch any."""
    on_the_job = [*OLD, *NEW, *ROW]
    for scene in scenes:
        tokens = OLD if scene == "expired" else {**OLD, **NEW}
        names = [name for name in on_the_job if name in tokens or name in ROW]
        without_keys = [*OLD_KEYLESS, *([] if scene == "expired" else NEW_KEYLESS), *ROW_KEYLESS]
        for chosen in (names, without_keys):
            for first, rival in itertools.product(chosen, chosen):
                if scene == "expired" or not {first, rival} <= {*OLD, *OLD_KEYLESS}:
                    yield scene, first, rival
    for first, rival in itertools.product(ASIDE, ASIDE):
        yield "again", first, rival


def triples() -> Iterator[Case]:
    """A write that holds the row, a stale one and another that come while it does; all in each order."""
    holders = [name for name in NEW if name in ENDS]
    for first, stale, third in itertools.product([*holders, "take over"], OLD, [*holders, "take over", "claim next"]):
        for rivals in ((stale, third), (third, stale)):
            yield Case("again", first, rivals, None)
    for first, second, third in itertools.permutations(OLD, 3):
        yield Case("expired", first, (second, third), None)


def play_pairs(stage: Stage, chosen: Sequence[tuple[str, str, str]]) -> int:
    """Every barrier of every pair, and the first rolled back; how many cases."""
    played = 0
    for scene, first, rival in chosen:
        for commits in (True, False):
            played += stage.play(Case(scene, first, (rival,), None, commits))
        for barrier in itertools.count():
            if not stage.play(Case(scene, first, (rival,), barrier)):
                break
            played += 1
    return played
