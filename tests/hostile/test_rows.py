"""A hostile puppet beside three honest trainers: nothing ends, and they lose less than a fifth of their rate."""

import pytest

from tests.hostile.breaking import BREAKING
from tests.hostile.deeds import Deed
from tests.hostile.relaying import RELAYING
from tests.hostile.stalling import STALLING
from tests.hostile.worlds import SEED, complaints, rate_alone, run

ROWS = (*STALLING, *BREAKING, *RELAYING)
LEAST = 0.8  # of the rate alone


@pytest.mark.parametrize("deed", ROWS, ids=lambda deed: deed.name)
def test_a_hostile_puppet_ends_nothing_and_costs_little(deed: Deed) -> None:
    outcome = run(deed)
    ratio = outcome.rate / rate_alone()
    where = f"{deed.name}, seed {SEED}: {outcome.rate:.4f} steps a second, {ratio:.2f} x alone; {dict(outcome.account)}"
    assert not complaints(outcome), where
    assert ratio >= LEAST, where
    assert all(outcome.account[deed_done] for deed_done in deed.bites), f"it did nothing: {where}"
