"""The list of faults that the tests must catch is up to date. `python -m tests.mutations` runs those tests."""

from pathlib import Path

from tests.mutations.catalogue import MUTATIONS, ONLY_IN_CHECK
from tests.mutations.mutation import Mutation, check

ROOT = Path(__file__).resolve().parents[1]


def test_every_pattern_is_found_once() -> None:
    assert check(MUTATIONS, ROOT) == []


def test_few_mutations_wait_for_make_check() -> None:
    assert {mutation.name for mutation in MUTATIONS} >= ONLY_IN_CHECK
    assert len(ONLY_IN_CHECK) <= len(MUTATIONS) / 5


def test_a_stale_pattern_is_noticed() -> None:
    first = MUTATIONS[0]
    stale = Mutation("stale", first.file, "not there", "anything", ("tests/none.py",))
    assert check((stale, first, first), ROOT) == [
        f"stale: {first.file} has 0 times 'not there'",
        "stale: no tests/none.py",
        f"{first.name} is there twice",
    ]
