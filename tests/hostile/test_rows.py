"""A hostile puppet beside three honest trainers: nothing ends, and they lose less than a fifth of their rate."""

import re
from pathlib import Path
from typing import get_args

import pytest

from peer_agent.protocol import messages as m
from tests.hostile import breaking, relaying, stalling
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


def test_every_message_that_a_peer_says_to_the_site_is_in_a_deed() -> None:
    """Whoever adds one says what a hostile peer would do with it."""
    deeds = "".join(Path(str(room.__file__)).read_text() for room in (breaking, relaying, stalling))
    named = set(re.findall(r"\bm\.(\w+)", deeds))
    assert [kind.__name__ for kind in get_args(m.TO_SITE) if kind.__name__ not in named] == []
