"""Processes without a model continue after failed rounds and agree on the averages."""

from pathlib import Path

from tests.benchmarks.memory.averaging import rounds_of

ROUNDS = 8


async def test_a_third_of_the_rounds_fail_and_the_others_are_made(tmp_path: Path) -> None:
    found = await rounds_of(tmp_path, elements=40_000, rounds=ROUNDS)
    assert 2 <= found["rounds_void"] < ROUNDS
    assert {"relay", "contributor that reduces", "contributor", "other contributor"} == found["memory"].keys()
    assert found["digests_equal"]
