"""Tests of the averages' error, measured against the exact mean of the contributors' sums."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import ChunkRange, Record
from peer_agent.protocol.messages import Weight
from tests.benchmarks.agents.held import (
    PLACES,
    Held,
    error_rms,
    exact_mean,
    load_average,
    load_held,
    places_in,
    save_average,
    save_held,
    tokens_at,
)

ONE, TWO = PeerId("1" * 32), PeerId("2" * 32)
ELEMENTS, CHUNK = 400, 100


class Part:
    def __init__(self, peer: PeerId, *included: tuple[int, int]) -> None:
        self.peer, self.included = peer, tuple(ChunkRange(first, stop) for first, stop in included)


class Named:
    def __init__(self, *parts: Part) -> None:
        self.contributions, self.elements, self.chunk_elements = parts, ELEMENTS, CHUNK


def record(*parts: Part) -> Record:
    return cast("Record", Named(*parts))


def held(value: float, tokens: int) -> Held:
    return Held(np.full(ELEMENTS, value * tokens, np.float32), np.full(ELEMENTS, tokens))


def test_places_are_the_same_for_everybody_and_each_once() -> None:
    assert places_in(ELEMENTS).tolist() == list(range(ELEMENTS))
    many = places_in(10 * PLACES)
    assert len(set(many.tolist())) == PLACES
    assert (np.diff(many) > 0).all()
    assert (many == places_in(10 * PLACES)).all()


def test_tokens_are_those_of_the_chunk() -> None:
    weights = [Weight(0, 1, 5), Weight(1, 4, 7)]
    assert tokens_at(weights, np.array([0, 1, 3])).tolist() == [5, 7, 7]


def test_the_mean_is_by_tokens_and_of_those_who_were_averaged_in() -> None:
    both = record(Part(ONE, (0, 4)), Part(TWO, (0, 1), (3, 4)))
    mean = exact_mean(both, {ONE: held(1.0, 300), TWO: held(5.0, 100)})
    assert mean[[0, 99, 100, 299, 300, 399]].tolist() == [2.0, 2.0, 1.0, 1.0, 2.0, 2.0]


def test_the_error_is_in_parts_of_the_mean() -> None:
    alone, own = record(Part(ONE, (0, 4))), {ONE: held(2.0, 10)}
    assert error_rms(alone, own, np.full(ELEMENTS, 2.0, np.float32)) == 0.0
    signs = np.where(np.arange(ELEMENTS) % 2, 1.0, -1.0)
    assert error_rms(alone, own, np.asarray(2.0 + 0.5 * signs, np.float32)) == pytest.approx(0.25)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    save_held(tmp_path, 3, held(1.5, 4))
    assert load_held(tmp_path, 3).sums.tolist() == held(1.5, 4).sums.tolist()
    assert load_held(tmp_path, 3).tokens.tolist() == [4] * ELEMENTS
    assert load_average(tmp_path, 3) is None
    save_average(tmp_path, 3, np.ones(2, np.float32))
    average = load_average(tmp_path, 3)
    assert average is not None
    assert average.tolist() == [1.0, 1.0]
