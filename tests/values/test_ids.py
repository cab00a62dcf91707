import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from ulid import ULID

from sqlane_sa.values import ids
from sqlane_sa.values.ids import new_id, new_ids


@pytest.fixture(autouse=True)
def own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests move the clock: they must not leave their times to the tests after them."""
    monkeypatch.setattr(ids, "_source", ids._Source())


def set_clock(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: ms * 1_000_000)


def increasing(values: list[str]) -> bool:
    return all(a < b for a, b in pairwise(values))


def test_ids_are_canonical_ulids_of_now() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_id(), *new_ids(3), new_id()]
    after = time.time_ns() // 1_000_000
    for text in made:
        assert str(ULID.from_str(text)) == text
        assert before <= ULID.from_str(text).milliseconds <= after
    assert increasing(made)


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 50_000])
def test_new_ids_counts(n: int) -> None:
    made = new_ids(n)
    assert len(made) == n
    assert increasing(made)


@pytest.mark.parametrize("first", [0, 2**20 - 3, 2**80 + 2**40 - 1, 2**128 - 5])
def test_runs_are_encoded_like_the_library_does(first: int) -> None:
    assert ids._texts(first, 5) == [str(ULID.from_int(first + n)) for n in range(5)]


def test_eight_threads_never_share_or_reorder() -> None:
    start = threading.Barrier(8)
    made: list[list[str]] = [[] for _ in range(8)]

    def work(mine: list[str]) -> None:
        start.wait()
        for n in range(500):
            mine.extend(new_ids(1 + n % 7))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(increasing(mine) for mine in made)
    assert len(set().union(*made)) == sum(map(len, made))


def test_a_clock_that_steps_back_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for ms in (1_700_000_000_000, 1_700_000_005_000, 1_700_000_000_000, 0, -5, 1_700_000_005_001):
        set_clock(monkeypatch, ms)
        made += [new_id(), *new_ids(10)]
    assert increasing(made)
    assert ULID.from_str(made[-1]).milliseconds == 1_700_000_005_001
    assert ULID.from_str(made[-12]).milliseconds == 1_700_000_005_000


def test_used_up_randomness_moves_on_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, 1_700_000_000_000)
    made = [new_id()]
    ids._source._runs._next = 2**80 - 2
    made += new_ids(2)
    made += new_ids(2)
    assert increasing(made)
    assert made[2].endswith("ZZZZ")
    assert [ULID.from_str(text).milliseconds - 1_700_000_000_000 for text in made] == [0, 0, 0, 1, 1]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    os.close(ends[0])


@pytest.mark.skipif(sys.platform == "win32", reason="needs os.fork")
def test_a_forked_child_has_ids_of_its_own_and_a_free_lock(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, 1_700_000_000_000)
    before = new_ids(3)
    with ids._source._lock:
        child = os.fork()
        if child == 0:  # pragma: no cover
            os.write(pipe[1], "\n".join([new_id(), *new_ids(100)]).encode())
            os._exit(0)
    os.close(pipe[1])
    with os.fdopen(os.dup(pipe[0])) as reader:
        theirs = reader.read().split("\n")
    assert os.waitpid(child, 0)[1] == 0
    ours = new_ids(100)
    assert len(theirs) == 101
    assert increasing([*before, *theirs])
    assert increasing([*before, *ours])
    assert not set(theirs) & set(ours)
    assert theirs[0][:-4] != ours[0][:-4]
