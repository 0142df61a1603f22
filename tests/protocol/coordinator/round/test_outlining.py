"""A round's public outline lasts from the plan to the end, through all attempts, but does not survive a restart."""

from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.plan import Kind, Outline
from tests.protocol.coordinator.scenes import capacities_of, reducing
from tests.protocol.coordinator.stage import Stage


def outline(stage: Stage) -> Outline:
    assert stage.state.outline is not None
    return stage.state.outline


def test_before_the_first_plan_there_is_nothing_to_see() -> None:
    assert Stage().state.outline is None


def test_a_plan_names_who_sends_who_averages_and_its_seconds() -> None:
    stage, *_ = reducing({}, {}, bps=(3_000_000, 1_000_000))
    shown = outline(stage)
    assert [(who.person, who.role) for who in shown.senders] == [(n, "trainer") for n in ("ann", "bob", "cem", "dan")]
    assert [(each.who.role, each.part) for each in shown.averagers] == [("relay", 0.75), ("relay", 0.25)]
    assert stage.round.plan is not None
    assert (shown.step, shown.planned_s) == (1, stage.round.plan.duration_s)
    assert (shown.took_s, shown.is_void) == (None, False)


def test_what_the_plan_waits_for_is_named_where_it_is_measured() -> None:
    stage, trainers, _ = reducing({}, bps=(1_000_000_000,))
    assert [limit.who[0].role for limit in outline(stage).bottlenecks] == ["relay"] * len(outline(stage).bottlenecks)
    stage.state.links.capacities |= capacities_of([(trainers[1].peer, 1000)])
    stage.reduce()
    stage.persist()
    stage.accumulate()
    stage.offers(*trainers)
    (limit,) = outline(stage).bottlenecks
    assert (limit.kind, limit.who[0].person) == (Kind.UP, "bob")


def test_how_long_it_took_is_known_when_all_averages_are_held() -> None:
    stage, *_ = reducing()
    stage.wait(3)
    assert outline(stage).took_s is None
    stage.reduce()
    assert outline(stage).took_s == 3
    stage.persist()
    assert outline(stage).took_s == 3


def test_seconds_count_from_the_first_attempt_of_each_round() -> None:
    stage, trainers, (lost, _) = reducing({}, {})
    stage.wait(2)
    stage.handle(e.Lost(lost))
    assert len(outline(stage).averagers) == 1
    stage.wait(1)
    stage.reduce()
    assert outline(stage).took_s == 3
    stage.persist()
    stage.accumulate()
    stage.offers(*trainers)
    assert (outline(stage).step, outline(stage).took_s, outline(stage).began_at) == (2, None, stage.state.now)


def test_a_round_that_is_void_took_nothing() -> None:
    stage, trainers, _ = reducing()
    for trainer in trainers[:3]:
        stage.handle(e.Lost(trainer.peer))
    assert stage.state.round is None
    assert (outline(stage).is_void, outline(stage).took_s) == (True, None)


def test_round_void_before_its_plan_leaves_the_last_outline() -> None:
    stage, trainers, _ = reducing()
    stage.reduce()
    stage.persist()
    stage.accumulate()
    assert stage.state.phase is Phase.OFFER
    for trainer in trainers:
        stage.handle(e.Lost(trainer.peer))
    assert stage.state.round is None
    assert (outline(stage).step, outline(stage).is_void) == (1, False)
