"""A hostile puppet beside three honest trainers: nothing ends, and they lose less than a fifth of their rate."""

import pytest

from tests.hostile.deeds import Deed
from tests.hostile.table import ROWS
from tests.hostile.worlds import SEED, complaints, rate_alone, run

LEAST = 0.8  # of the rate alone


@pytest.mark.parametrize("deed", ROWS, ids=lambda deed: deed.name)
def test_a_hostile_puppet_ends_nothing_and_costs_little(deed: Deed) -> None:
    outcome = run(deed)
    ratio = outcome.rate / rate_alone()
    where = f"{deed.name}, seed {SEED}: {outcome.rate:.4f} steps a second, {ratio:.2f} x alone; {dict(outcome.account)}"
    assert not complaints(outcome), where
    assert all(outcome.account[bite] for bite in deed.bites), f"it did nothing: {where}"
    assert not any(outcome.account[said] for said in deed.never), where
    assert ratio >= LEAST, where
