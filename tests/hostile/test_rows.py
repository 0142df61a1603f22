"""A hostile puppet does not stop three honest trainers, and costs them less than a fifth of their speed."""

import re
from pathlib import Path
from typing import get_args

import pytest

from peer_agent.protocol import messages as m
from tests.hostile import breaking, relaying, stalling
from tests.hostile.behaviours import Behaviour
from tests.hostile.table import ROWS
from tests.hostile.worlds import SEED, complaints, rate_alone, run

LEAST = 0.8  # share of the rate without a puppet


@pytest.mark.parametrize("behaviour", ROWS, ids=lambda behaviour: behaviour.name)
def test_a_hostile_puppet_ends_nothing_and_costs_little(behaviour: Behaviour) -> None:
    outcome = run(behaviour)
    ratio = outcome.rate / rate_alone()
    pace = f"{outcome.rate:.4f} steps a second, {ratio:.2f} x alone"
    where = f"{behaviour.name}, seed {SEED}: {pace}; {dict(outcome.account)}"
    assert not complaints(outcome), where
    assert all(outcome.account[bite] for bite in behaviour.bites), f"it did nothing: {where}"
    assert not any(outcome.account[said] for said in behaviour.never), where
    assert ratio >= LEAST, where


def test_every_message_that_a_peer_says_to_the_site_is_in_a_behaviour() -> None:
    """Every new message type needs a behaviour that misuses it."""
    behaviours = "".join(Path(str(room.__file__)).read_text() for room in (breaking, relaying, stalling))
    named = set(re.findall(r"\bm\.(\w+)", behaviours))
    assert [kind.__name__ for kind in get_args(m.TO_SITE) if kind.__name__ not in named] == []
