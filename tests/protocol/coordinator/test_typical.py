from collections.abc import Sequence

import pytest

from peer_agent.protocol.coordinator.typical import GROWTH, remember_norm, typical
from tests.protocol.coordinator.stage import Stage


@pytest.mark.parametrize(
    ("persons", "values", "expected"),
    [
        (["ann"], [3.0], 3.0),
        (["ann", "bob", "cem"], [1.0, 2.0, 9.0], 2.0),
        (["eve", "eve", "eve", "ann", "bob"], [9.0, 9.0, 9.0, 1.0, 2.0], 2.0),
        (["eve", "eve", "ann"], [1.0, 3.0, 4.0], 3.0),
    ],
)
def test_each_person_counts_once(persons: Sequence[str], values: Sequence[float], expected: float) -> None:
    assert typical(persons, values) == expected


def test_an_updates_norm_counts_as_twice_those_before_it_at_most() -> None:
    stage = Stage(batch=16)
    stage.relay()
    ann = stage.trainer("ann")
    for norm in (1.0, 1.5, 1e9):
        stage.accumulate()
        stage.offer(ann, norm=norm)
        stage.reduce()
        remember_norm(stage.state, stage.persist())
    assert list(stage.state.norms) == [1.0, 1.0, 1.5, 1.5, GROWTH * 1.25, GROWTH * 1.5]
