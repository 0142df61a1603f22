"""Runs under attack, in a short version of `python -m tests.benchmarks.training.attacks`."""

import pytest

from tests.benchmarks.training.attacks import ATTACKS, Case

STEPS = 40


@pytest.mark.parametrize("attack", ATTACKS)
def test_liars_act_and_are_named_and_no_one_else_is(attack: str) -> None:
    found = Case("mlp", "defaults", attack, 2).run(1, STEPS)
    assert found.acted >= 10
    assert len(found.named_after) == 2
    assert found.wrongly_named == 0


def test_without_audits_and_limits_the_same_attack_does_harm() -> None:
    clean, defended, open_ = (Case("mlp", *facts).run(1, STEPS) for facts in CASES)
    assert defended.loss <= 1.10 * clean.loss
    assert open_.loss >= 1.2 * clean.loss
    assert open_.named_after == []


CASES = (("defaults",), ("defaults", "flip x3", 3), ("known people", "flip x3", 3))
