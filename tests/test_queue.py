"""The queue: fair, bounded, and nobody in it is forgotten."""

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxscore_server.queue import Entry, Job, ScoreQueue
from mlxscore_server.row import Row


def job(num_rows: int, length: int = 11) -> Job:
    """Rows of `length - 1` input tokens each."""
    return Job([Row(np.arange(length, dtype=np.int32), 1) for _ in range(num_rows)], lambda _: None)


def taken(queue: ScoreQueue, tokens: int) -> list[Entry]:
    window = queue.take(tokens)
    assert window is not None
    return window


def test_a_small_job_does_not_wait_behind_a_bulk_one() -> None:
    queue = ScoreQueue(max_tokens=10**6)
    bulk, small = job(1000), job(1)
    assert queue.put(bulk)
    assert queue.put(small)
    window = taken(queue, 100)
    assert any(entry.job is small for entry in window)
    assert len(window) <= 11


def test_full_is_refused_at_once_and_leaves_room_when_taken() -> None:
    queue = ScoreQueue(max_tokens=100)
    assert queue.put(job(9))
    assert not queue.put(job(2))
    assert queue.put(job(1))
    taken(queue, 20)
    assert queue.put(job(2))


def test_a_job_larger_than_the_queue_enters_an_empty_one() -> None:
    queue = ScoreQueue(max_tokens=100)
    assert queue.put(job(50))
    assert not queue.put(job(1))


def test_a_departed_job_gives_its_place_back() -> None:
    queue = ScoreQueue(max_tokens=100)
    first, second = job(10), job(10)
    assert queue.put(first)
    assert not queue.put(second)
    queue.discard(first)
    assert queue.tokens == 0
    assert queue.put(second)
    assert {entry.job for entry in taken(queue, 1000)} == {second}


def test_take_waits_for_work_and_ends_when_closed() -> None:
    queue = ScoreQueue(max_tokens=100)
    windows: list[list[Entry] | None] = []

    def take_twice() -> None:
        windows.append(queue.take(100))
        windows.append(queue.take(100))

    thread = threading.Thread(target=take_twice)
    thread.start()
    queue.put(job(2))
    queue.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert windows[0] is not None and len(windows[0]) == 2
    assert windows[1] is None


def test_closed_lets_nobody_in_and_gives_out_what_is_there() -> None:
    queue = ScoreQueue(max_tokens=100)
    queue.put(job(3))
    queue.close()
    assert not queue.put(job(1))
    assert len(taken(queue, 100)) == 3
    assert queue.take(100) is None


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(2, 30)), max_size=10),
    st.integers(1, 200),
    st.sets(st.integers(0, 9)),
)
def test_every_row_of_who_stays_is_taken_once(
    shapes: list[tuple[int, int]], window_tokens: int, leavers: set[int]
) -> None:
    queue = ScoreQueue(max_tokens=10**9)
    jobs = [job(rows, length) for rows, length in shapes]
    for each in jobs:
        assert queue.put(each)
    for i in leavers:
        if i < len(jobs):
            queue.discard(jobs[i])
    queue.close()
    seen: list[tuple[int, int]] = []
    while (window := queue.take(window_tokens)) is not None:
        seen += [(id(entry.job), entry.index) for entry in window]
    wanted = [
        (id(each), index)
        for i, each in enumerate(jobs)
        if i not in leavers
        for index in range(len(each.rows))
    ]
    assert sorted(seen) == sorted(wanted)
    assert queue.tokens == 0
