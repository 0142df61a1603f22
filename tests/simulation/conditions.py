"""The conditions of the simulated worlds used in tests."""

import pytest

from peer_agent.simulation import churn
from peer_agent.simulation.churn import Conditions, Spell, only
from peer_agent.simulation.faults import Kind
from peer_agent.simulation.world import Setting

ALL_KINDS: tuple[Kind, ...] = tuple(sorted({*churn.TRAINERS, *churn.RELAYS, *churn.SITE, *churn.ODDS}))

# Trainers and rounds of worlds with all conditions.
SIZES = ((30, 30), pytest.param(200, 50, marks=pytest.mark.check), pytest.param(50, 500, marks=pytest.mark.check))


def all_at_once(scale: float = 1.0) -> Conditions:
    return only(set(ALL_KINDS), scale)


def restless(setting: Setting, *, trainer_s: float, relay_s: float, site_s: float) -> Conditions:
    """Return conditions, given the mean virtual seconds between faults of a trainer, of a relay and of the site."""
    kinds: tuple[Kind, ...] = ("killed", "reconnected", "frozen", "gave back")
    each_s = trainer_s * setting.trainers * len(kinds)
    return Conditions(
        trainers={kind: Spell(each_s, 0.5, 20) for kind in kinds},
        relays={"killed": Spell(relay_s * setting.relays, 0.5, 5)},
        site={"site killed": Spell(2 * site_s, 0.2, 3), "host frozen": Spell(2 * site_s, 1, 15)},
    )
