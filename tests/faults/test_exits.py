"""Handlers that misbehave, in real worker processes: each kind is recorded right, and the neighbours' jobs run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import exits
from tests.faults.fleet import LONG, Fleet
from tests.support import wait_until

pytestmark = pytest.mark.timeout(900 if LONG else 300)

DEADLY = {"os._exit": 3, "segfault": -signal.SIGSEGV, "killed": -signal.SIGKILL, "abort": -signal.SIGABRT}
FORKS = [
    "fork, and the child returns",
    "fork, and the child raises",
    "fork, and the child leaves by sys.exit",
    "fork, and the child leaves by os._exit",
    "transactional fork",
    "async fork",
]
GIL_HOLDERS = ["regex", "power"]
ALL_KINDS = (exits.queue.definitions.keys() | exits.EXITS.keys()) - exits.NO_MISDEEDS
"""What the module makes handlers do, each raised exception a kind of its own."""


@pytest.fixture(scope="module")
def handled() -> set[str]:
    """The kinds of which a test has shown it; each adds its own at its end."""
    return set()


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(database_url, exits.queue, exits.serve, tmp_path)
    yield fleet
    fleet.close()


def test_a_process_that_dies_costs_its_jobs_a_stall(fleet: Fleet, handled: set[str]) -> None:
    """A20: exit, segmentation fault, SIGKILL (as by the kernel short of memory), abort. Another worker runs the job."""
    ids = {kind: fleet.enqueue(kind) for kind in DEADLY}
    victims = {kind: fleet.start(kind, names=[kind, "neighbour"], concurrency=2) for kind in DEADLY}
    for kind, process in victims.items():
        assert process.wait() == DEADLY[kind], kind
    neighbours = [fleet.enqueue("neighbour", {"seconds": 0}) for _ in range(5)]
    fleet.start("other")
    for id_ in ids.values():
        job = fleet.completed(id_)
        assert (job.stalls, job.attempts) == (1, 1)
        assert len(fleet.events(id_)) == 2
        assert fleet.events(id_)[1].worker == "other"
    for id_ in neighbours:
        assert fleet.completed(id_).stalls == 0
    fleet.report("a handler ends its process", ", ".join(DEADLY))
    handled.update(DEADLY)


@pytest.mark.parametrize("name", ["raises", "async raises"])
def test_whatever_a_handler_raises_is_a_failed_attempt(fleet: Fleet, handled: set[str], name: str) -> None:
    """J114: the worker serves on, the error is kept, and the last attempt has its failure job."""
    again = {kind: fleet.enqueue(name, {"kind": kind}) for kind in exits.EXITS}
    last = {kind: fleet.enqueue(name, {"kind": kind}, max_attempts=1) for kind in exits.EXITS}
    neighbours = [fleet.enqueue(kind, {"seconds": 1.5}) for kind in ("neighbour", "async_neighbour")]
    process = fleet.start(concurrency=4)
    for id_ in again.values():
        job = fleet.completed(id_)
        assert (job.stalls, job.attempts, len(fleet.events(id_))) == (0, 2, 2)
    for kind, id_ in last.items():
        job = fleet.wait_status(id_, "failed")
        assert (job.stalls, job.attempts) == (0, 1)
        assert type(exits.EXITS[kind]()).__name__ in str(job.last_error)
        wait_until(lambda id_=id_: len(fleet.rows("SELECT FROM ledger WHERE event = :e", e="failed:" + id_)) == 1)
    ran_undisturbed(fleet, neighbours)
    assert process.poll() is None
    is_async = "an async" if name == "async raises" else "a"
    wait_until(lambda: fleet.rows("SELECT FROM sqlane_jobs WHERE status IN ('pending', 'running')") == [])
    fleet.report(f"{is_async} handler raises", f"{', '.join(exits.EXITS)}; half of them at their last attempt")
    handled.update(exits.EXITS)


def test_running_out_of_stack_or_memory_is_a_failed_attempt(fleet: Fleet, handled: set[str]) -> None:
    """In one piece and in small ones, which leave nothing for the worker's own threads either."""
    kinds = ["stack overflow", "memory", "memory in small pieces"]
    process = fleet.start(concurrency=4)
    neighbours = [fleet.enqueue("neighbour", {"seconds": 3})]
    for kind in kinds:
        id_ = fleet.enqueue(kind)
        job = fleet.completed(id_)
        assert (job.stalls, job.attempts, len(fleet.events(id_))) == (0, 2, 2), kind
    ran_undisturbed(fleet, neighbours)
    assert process.poll() is None
    fleet.report("a handler exhausts something", ", ".join(kinds))
    handled.update(kinds)


def test_a_forked_child_ends_where_the_handler_ends(fleet: Fleet, handled: set[str]) -> None:
    """A child that came back from its handler would go on as a second worker over the first one's connections."""
    neighbours = [fleet.enqueue(kind, {"seconds": 3}) for kind in ("neighbour", "async_neighbour")]
    process = fleet.start(concurrency=4)
    for kind in FORKS:
        id_ = fleet.enqueue(kind)
        job = fleet.completed(id_)
        assert (job.stalls, job.attempts, len(fleet.events(id_, "end"))) == (0, 1, 1), kind
    ran_undisturbed(fleet, neighbours)
    assert fleet.rows("SELECT count(*) FROM ledger WHERE event = 'effect'") == [(1,)]
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    fleet.report("a handler forks", "the child returns, raises, leaves by sys.exit, by os._exit; transactional, async")
    handled.update(FORKS)


def test_a_forked_child_that_runs_on_holds_up_nothing(fleet: Fleet, handled: set[str]) -> None:
    id_ = fleet.enqueue(kind := "fork, and the child runs on", {"seconds": 5})
    process = fleet.start(concurrency=1)
    assert fleet.completed(id_).attempts == 1
    ran_undisturbed(fleet, [fleet.enqueue("neighbour", {"seconds": 0}) for _ in range(5)])
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    fleet.report("a handler forks", "the child outlives the handler")
    handled.add(kind)


def test_a_blocked_event_loop_costs_no_lease(fleet: Fleet, handled: set[str]) -> None:
    """A17: for three leases; the async neighbours wait, the others do not."""
    id_ = fleet.enqueue("block", {"seconds": 3})
    fleet.start("first")
    fleet.wait_for(id_)
    fleet.start("second")
    ran_undisturbed(fleet, [id_] + [fleet.enqueue("neighbour", {"seconds": 0}) for _ in range(5)])
    fleet.report("the event loop is blocked", "for three leases")
    handled.add("block")


@pytest.mark.parametrize("kind", GIL_HOLDERS)
def test_a_held_interpreter_costs_no_second_success(fleet: Fleet, handled: set[str], kind: str) -> None:
    """A17: one call in C that holds the interpreter for two leases and more. What was taken over is accepted once."""
    id_ = fleet.enqueue(kind, {"seconds": 2.5})
    fleet.start("first", concurrency=2)
    fleet.wait_for(id_)
    fleet.start("second", stall_delay=0.0)
    neighbours = [fleet.enqueue("neighbour", {"seconds": 0}) for _ in range(5)]
    for each in [id_, *neighbours]:
        job = fleet.completed(each)
        assert job.attempts == 1
        assert len(fleet.events(each)) <= 1 + job.stalls
    assert fleet.job(id_).stalls >= 1, "the call was to outlast the lease"
    fleet.report("the interpreter is held", f"{kind}, for more than two leases")
    handled.add(kind)


@pytest.mark.parametrize("kind", GIL_HOLDERS)
def test_the_default_lease_outlasts_a_held_interpreter(fleet: Fleet, kind: str) -> None:
    """A call of a third of the lease stalls no neighbour: 20 s of 60 s in the long variant."""
    lease = 60.0 if LONG else 15.0
    # One call: a row of them lets the others run between two for a moment only.
    id_ = fleet.enqueue(kind, {"seconds": 0, "size": exits.size_for(kind, lease / 3)})
    neighbours = [fleet.enqueue("neighbour", {"seconds": lease / 4}) for _ in range(3)]
    fleet.start("first", lease=lease)
    for each in [id_, *neighbours]:
        fleet.wait_for(each)
    fleet.start("second", lease=lease)
    for each in [id_, *neighbours]:
        fleet.wait_for(each, "end", timeout=4 * lease)
    ran_undisturbed(fleet, [id_, *neighbours])
    fleet.report("the interpreter is held", f"{kind}, a third of a lease of {lease:g} s")


def test_a_process_without_its_sockets_recovers_or_ends(fleet: Fleet, handled: set[str]) -> None:
    """It closed all that it had open. Goes on, or ends with an error and its successor does; never alive and deaf."""
    ids = [fleet.enqueue("async_neighbour", {"seconds": 0})]
    process = fleet.start(shutdown_timeout=1.0)
    fleet.completed(ids[0])
    ids = [fleet.enqueue("closes sockets")]
    fleet.wait_for(ids[0])
    ids += [fleet.enqueue(name, {"seconds": 0}) for name in ["neighbour", "async_neighbour"] * 5]

    def done() -> bool:
        nonlocal process
        if process.poll() is not None:
            assert process.poll() != 0, "as if nothing had happened"
            process = fleet.start()
        return all(fleet.job(id_).status == "completed" for id_ in ids)

    wait_until(done, timeout=60)
    for id_ in ids:
        job = fleet.job(id_)
        assert len(fleet.events(id_)) <= job.attempts + job.stalls + fleet.releases(id_)
    assert all(len(each.said()) < 200_000 for each in fleet.processes), "a line for each turn of a busy loop"
    fleet.report("a handler closes all sockets", "those of the worker too")
    handled.add("closes sockets")


def test_a_handler_that_stops_its_own_process_may_finish(fleet: Fleet, handled: set[str]) -> None:
    """K121: by SIGTERM, as a shutdown from outside."""
    id_ = fleet.enqueue(kind := "kills itself with SIGTERM")
    process = fleet.start()
    assert process.wait() == 0
    job = fleet.job(id_)
    assert (job.status, job.stalls, job.attempts) == ("completed", 0, 1)
    fleet.report("a handler stops its process", "SIGTERM")
    handled.add(kind)


def test_what_a_handler_leaves_behind_does_not_reach_the_worker(fleet: Fleet, handled: set[str]) -> None:
    """Threads, blocked signals, another folder, and `sys.exit` in a thread of its own; SIGTERM still ends it."""
    kinds = ["sys.exit in a thread", "signals and folder", "leaves threads behind"]
    process = fleet.start()
    ids = [fleet.enqueue(kind) for kind in kinds]
    ran_undisturbed(fleet, ids)
    ran_undisturbed(fleet, [fleet.enqueue("neighbour", {"seconds": 0}) for _ in range(5)])
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    fleet.report("a handler leaves something behind", ", ".join(kinds))
    handled.update(kinds)


def test_every_kind_is_handled(handled: set[str], request: pytest.FixtureRequest) -> None:
    """The last of the module: by the tests before it, none left out."""
    chosen = {item.originalname for item in request.session.items if item.path == request.path}  # type: ignore[attr-defined]
    if left_out := {name for name in globals() if name.startswith("test_")} - chosen:
        pytest.skip(f"these were not to run: {', '.join(sorted(left_out))}")
    print(f"\nreliability: {len(handled & ALL_KINDS)} of {len(ALL_KINDS)} kinds of exit handled")
    assert handled == ALL_KINDS


def ran_undisturbed(fleet: Fleet, ids: list[str]) -> None:
    """One start and one success each, and no stall."""
    for id_ in ids:
        job = fleet.completed(id_)
        assert (job.stalls, job.attempts, len(fleet.events(id_))) == (0, 1, 1), job
