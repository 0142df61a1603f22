"""Who is leased how much: by what it has shown, and never while it is not known what it holds."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.state import Phase
from tests.protocol.coordinator.scenes import four, pair
from tests.protocol.coordinator.stage import UNIT, Stage, sent


def test_shares_are_in_proportion_to_pace_and_quotas_above_them_by_a_quarter() -> None:
    stage = Stage(batch=60)
    stage.relay()
    fast, slow = stage.trainer("fast"), stage.trainer("slow")
    for _ in range(8):
        while stage.state.phase is Phase.ACCUMULATE:
            stage.wait(1)
            stage.compute(fast, 2)
            if int(stage.now) % 2:
                stage.compute(slow)
        stage.offers(fast, slow)
        stage.reduce()
        stage.persist()
    stage.wait(1.25)
    shares = stage.member(fast).share, stage.member(slow).share
    assert shares == (48, 12)
    assert (fast.quota, slow.quota) == (60, 16)


def test_a_machine_that_delivers_at_once_is_expected_no_more_than_it_has_shown() -> None:
    """Its reports cannot be checked before it offers; so its share grows from update to update."""
    stage, honest, liar = four(same_person=False)
    for _ in range(4):
        stage.wait(1)
        stage.compute(liar, 10)
    stage.wait(2)
    assert stage.member(liar).conduct.pace > 0
    assert stage.member(liar).share <= 24, "twice an equal share"
    assert all(stage.member(trainer).share >= UNIT for trainer in honest)


def test_nothing_is_leased_between_the_question_and_the_hello() -> None:
    stage, _, bob = pair()
    stage.wait(2)
    stage.member(bob).hello_asked_at = stage.state.now
    bob.done, bob.undone = dict.fromkeys(bob.undone, bob.step), []
    assert sent(stage.report(bob), m.Lease) == []
    stage.hello(bob)
    assert bob.undone
