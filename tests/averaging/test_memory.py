"""Reuse of memory: pooled arrays and scratch buffers."""

import gc
import threading
from collections.abc import Callable
from threading import Thread
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.memory import LEAST_BYTES, MOST, MOST_SPARE, Memory, Payloads, Scratch
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.recipe import Codec

LARGE = LEAST_BYTES // 4  # number of float32 elements that fill LEAST_BYTES


def _at(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    memory = Memory()
    first = memory.array(np.float32, LARGE)
    where = _at(first)
    first[:] = 1.0
    del first
    second = memory.array(np.float32, LARGE)
    assert _at(second) == where
    assert second.shape == (LARGE,)
    assert second.dtype == np.float32
    assert second.flags.writeable


@pytest.mark.parametrize(
    "view",
    [lambda array: array[5:9], lambda array: array[::2].reshape(-1, 2), lambda array: memoryview(array)[3:4]],
    ids=["part", "shape", "memoryview"],
)
def test_what_a_view_is_held_of_is_not_given_out(view: Callable[[NDArray[np.float32]], object]) -> None:
    memory = Memory()
    first = memory.array(np.float32, LARGE)
    where, held = _at(first), view(first)
    del first
    gc.collect()
    assert _at(memory.array(np.float32, LARGE)) != where
    del held
    assert where in (_at(memory.array(np.float32, LARGE)), _at(memory.array(np.float32, LARGE)))


def test_array_takes_the_smallest_fit_and_none_far_too_large() -> None:
    memory = Memory()
    arrays = {size: memory.array(np.uint8, size * LEAST_BYTES) for size in (16, 5, 4)}
    places = {size: _at(array) for size, array in arrays.items()}
    arrays.clear()
    kept = memory.array(np.uint8, 4 * LEAST_BYTES + 1)
    assert _at(kept) == places[5]
    assert kept.size == 4 * LEAST_BYTES + 1
    assert _at(memory.array(np.uint8, 3 * LEAST_BYTES)) not in places.values()
    assert _at(memory.array(np.uint8, 14 * LEAST_BYTES)) == places[16]


def test_only_so_much_is_kept_the_latest() -> None:
    memory = Memory()
    arrays = [memory.array(np.uint8, LEAST_BYTES) for _ in range(MOST_SPARE + 2)]
    places = [_at(array) for array in arrays]
    while arrays:
        arrays.pop(0)
    assert len(memory._spare) == MOST_SPARE
    again = [memory.array(np.uint8, LEAST_BYTES) for _ in range(MOST_SPARE)]
    assert {_at(array) for array in again} == set(places[2:])


@pytest.mark.parametrize("elements", [0, 1, LARGE - 1])
def test_small_arrays_are_the_allocators_own(elements: int) -> None:
    memory = Memory()
    assert memory.array(np.float32, elements).shape == (elements,)
    assert not memory._spare


def test_threads_never_hold_the_same() -> None:
    memory, clashes = Memory(), list[int]()

    def use(mark: int) -> None:
        for _ in range(200):
            array = memory.array(np.uint8, LEAST_BYTES)
            array[::4096] = mark
            if (array[::4096] != mark).any():
                clashes.append(mark)

    threads = [Thread(target=use, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes


def test_next_round_reuses_memory_of_gradients_and_payloads() -> None:
    grid = Grid(4 * LEAST_BYTES, 16384)
    places = []
    for _ in range(2):
        assembly, payloads = Assembly(grid, "fp16"), Payloads("fp16", grid, 0, grid.chunks)
        places.append((_at(assembly._values), _at(payloads.rows(0, 1))))
        del assembly, payloads
    assert places[0] == places[1]


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


GRID = Grid(5000, 1024)


@pytest.mark.parametrize("codec", get_args(Codec))
def test_every_chunk_has_room_of_its_own(codec: Codec) -> None:
    payloads = Payloads(codec, GRID, 1, 5)
    for chunk in range(1, 5):
        payloads.rows(chunk, 1)[:] = chunk + 1
    for chunk in range(1, 5):
        row = payloads.rows(chunk, 1)
        assert row.shape == (1, encoded_size(codec, GRID.length(chunk)))
        assert (row == chunk + 1).all()
    assert np.array_equal(payloads.rows(1, 3)[:, 0], [2, 3, 4])
