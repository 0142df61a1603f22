"""Arrays that are used again: the same for one thread, never for two, and never too small."""

import threading

import numpy as np

from peer_agent.averaging.scratch import MOST, Scratch


def test_a_thread_gets_the_same_memory_again() -> None:
    scratch = Scratch()
    first = scratch.room("sums", np.float32, 10)
    first[:] = 7
    assert np.shares_memory(scratch.room("sums", np.float32, 5), first)
    assert not np.shares_memory(scratch.room("means", np.float32, 10), first)


def test_another_thread_gets_its_own() -> None:
    scratch, rooms = Scratch(), []
    threads = [threading.Thread(target=lambda: rooms.append(scratch.room("sums", np.float32, 10))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not np.shares_memory(rooms[0], rooms[1])


def test_what_is_larger_is_made_anew_with_all_views() -> None:
    scratch = Scratch()
    views = [scratch.once("view", lambda: scratch.room("sums", np.float32, 4)[:2]) for _ in range(2)]
    assert views[0] is views[1]
    assert scratch.room("sums", np.float32, 100).size == 100
    assert np.shares_memory(
        scratch.once("view", lambda: scratch.room("sums", np.float32, 4)), scratch.room("sums", np.float32, 4)
    )


def test_it_does_not_grow_for_ever() -> None:
    scratch, made = Scratch(), list[int]()
    for key in [*range(3 * MOST), 3 * MOST - 1, 0]:
        scratch.once(key, lambda key=key: made.append(key))  # type: ignore[misc]
    assert len(made) == 3 * MOST + 1
    assert len(scratch._made) <= MOST
