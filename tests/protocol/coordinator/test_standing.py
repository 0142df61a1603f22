"""While nothing happens, the run gives a reason that names the peers it is waiting for."""

from typing import Any

from peer_agent.protocol import messages as m
from peer_agent.protocol import reasons
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.reliability import Quarantine
from peer_agent.protocol.coordinator.state import Phase, name_all
from peer_agent.protocol.timing import USUAL_S
from tests.protocol.coordinator.stage import Stage, Trainer


def two(**recipe: Any) -> tuple[Stage, list[Trainer]]:
    stage = Stage(batch=24, **recipe)
    stage.relay()
    trainers = [stage.trainer("laptop", "ann"), stage.trainer("tower", "bob")]
    stage.commit()
    return stage, trainers


def still(stage: Stage, seconds: float = USUAL_S) -> str:
    """Wait until nothing has happened for this long. Return the reason that the run gives."""
    stage.wait(max(0.0, stage.state.moved_at + seconds + 0.3 - stage.state.now))
    return stage.state.waiting


def test_somebody_who_computes_nothing_is_named() -> None:
    stage, _ = two()
    assert still(stage, USUAL_S - 1) == ""
    assert still(stage) == "waiting for ann (laptop) and bob (tower) to finish computing"
    assert any(isinstance(command, e.Waiting) for command in stage.said)


def test_a_scheduled_run_waits_for_its_start_and_says_so_once() -> None:
    stage, _ = two()
    reason = reasons.SCHEDULED.format(date="2026-12-05", time="18:00")
    stage.handle(e.Directed("paused", pause_reason=reason))
    stage.wait(5.0)
    stage.handle(e.Directed("paused", pause_reason=reason))
    stage.wait(5.0)
    told = [c.message for c in stage.said if isinstance(c, e.Send) and isinstance(c.message, m.State)]
    assert [state.state for state in told if state.reason == reason] == ["waiting"]
    stage.handle(e.Directed("paused"))
    stage.wait(1.0)
    assert stage.state.waiting == reasons.PAUSED, "the organizer paused it before its start"


def test_somebody_who_loads_is_named() -> None:
    stage, trainers = two()
    for trainer in trainers:
        trainer.step = -1
        stage.hello(trainer)
    assert still(stage) == "waiting for ann (laptop) and bob (tower) to load the model"


def test_somebody_who_does_not_offer_is_named() -> None:
    stage, (ann, _) = two()
    stage.state.timings.offers.extend([30.0] * 50)
    stage.accumulate()
    stage.offer(ann)
    assert still(stage) == "waiting for the gradients of bob (tower)"


def test_a_relay_that_stands_still_is_named() -> None:
    stage, trainers = two()
    stage.accumulate()
    stage.offers(*trainers)
    assert stage.state.phase is Phase.REDUCE
    assert still(stage) == "waiting for the averages of operator (relay)"


def test_the_database_is_named() -> None:
    stage, trainers = two()
    stage.accumulate()
    stage.offers(*trainers)
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT
    assert still(stage) == "waiting for the site's database"


def test_who_is_to_hand_in_the_model_is_named() -> None:
    stage, trainers = two(steps=2)
    stage.commit()
    text = still(stage, USUAL_S + 1)
    assert text in {f"waiting for {trainer.person} ({trainer.name}) to upload the model" for trainer in trainers}


def test_reason_is_given_even_where_none_is_known() -> None:
    stage, _ = two()
    for member in stage.state.members.values():
        member.quota = 0
        member.reliability.misses = Quarantine(until_round=10**6)
        member.reliability.failed_at = stage.state.now
        member.reliability.asked = 1000
    stage.state.override.is_on = False
    assert "ann (laptop)" in still(stage)


def test_the_reason_goes_when_something_moves() -> None:
    stage, (ann, _) = two()
    assert still(stage)
    stage.compute(ann)
    stage.wait(0.5)
    assert stage.state.waiting == ""


def test_three_are_named_and_the_others_counted() -> None:
    stage = Stage()
    members = [stage.member(stage.trainer(f"m{number}", f"p{number}")) for number in range(7)]
    assert name_all(members[:1]) == "p0 (m0)"
    assert name_all(members[:3]) == "p0 (m0), p1 (m1) and p2 (m2)"
    assert name_all(members) == "p0 (m0), p1 (m1), p2 (m2) and 4 more"
