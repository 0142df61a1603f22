"""A household keeps its share of the uplink: plans leave that share unused, and the agent gets a rate limit."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import Capacity
from peer_agent.protocol.coordinator.events import Send
from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.coordinator.round.planning import make_plan, tell_rates, upload_bps
from peer_agent.protocol.identifiers import PeerId
from tests.protocol.coordinator.scenes import capacities_of, reducing
from tests.protocol.coordinator.stage import Stage, peer_of

ANN = peer_of("ann")


def told(stage: Stage) -> dict[PeerId, int]:
    sent = [each for each in tell_rates(stage.state) if isinstance(each, Send)]
    rates = [(each.peers, each.message.bytes_per_s) for each in sent if isinstance(each.message, m.Uplink)]
    return {peer: rate for peers, rate in rates for peer in peers}


def reserved(percent: int = 20) -> Stage:
    """Return a run in which Ann's household reserves this percentage. Her uplink carries 1 MB/s."""
    stage, *_ = reducing()
    stage.hello(stage.trainers[ANN], reserve_percent=percent)
    stage.state.links.capacities |= capacities_of([(ANN, 1_000_000)])
    return stage


@pytest.mark.parametrize(("percent", "rate"), [(20, {ANN: 800_000}), (90, {ANN: 100_000}), (0, {})])
def test_an_agent_is_told_what_is_left(percent: int, rate: dict[PeerId, int]) -> None:
    stage = reserved(percent)
    assert told(stage) == pytest.approx(rate, abs=1)
    assert upload_bps(stage.state, stage.state.members[ANN]) == pytest.approx(1e6 * (1 - percent / 100))


def test_rate_is_sent_again_when_it_changes_or_after_a_hello() -> None:
    stage = reserved()
    assert told(stage)
    assert not told(stage)
    stage.state.links.capacities[ANN, "up"].bps = 1_010_000
    assert not told(stage), "by a hundredth"
    stage.state.links.capacities[ANN, "up"].bps = 1_030_000
    assert told(stage) == pytest.approx({ANN: 824_000}, abs=1)
    stage.hello(stage.trainers[ANN], reserve_percent=20)
    assert told(stage), "it may be another process"


@pytest.mark.parametrize(
    ("is_floor", "is_tried", "is_told"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_the_least_that_a_link_carries_is_no_rate(is_floor: bool, is_tried: bool, is_told: bool) -> None:
    """A rate limit set to a mere lower bound would keep the link at that rate forever."""
    stage = reserved()
    stage.state.links.capacities[ANN, "up"] = Capacity(1e6, is_floor, 0, is_tried)
    assert bool(told(stage)) is is_told


def test_a_plan_counts_on_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "START_S", 0.0)
    stage = reserved(50)
    half = make_plan(stage.state, stage.round, stage.state.reducers()).duration_s
    stage.state.members[ANN].reserve = 0.0
    whole = make_plan(stage.state, stage.round, stage.state.reducers()).duration_s
    assert half == pytest.approx(2 * whole)


def test_a_rate_is_told_before_the_plan() -> None:
    stage = reserved()
    said = [each.message for each in planning.plan(stage.state) if isinstance(each, Send)]
    assert [message.bytes_per_s for message in said if isinstance(message, m.Uplink)] == [800_000]
