"""A round that ends without an update: everybody learns of it, and nothing is lost."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.round.voiding import REPEAT_S
from peer_agent.protocol.coordinator.state import Phase
from tests.protocol.coordinator.scenes import pair
from tests.protocol.coordinator.stage import sent


def test_a_lost_void_is_said_again_to_those_who_may_wait_in_its_round() -> None:
    stage, ann, bob = pair()
    stage.accumulate()
    stage.offer(bob, loss_tokens=10**9)
    stage.offer(ann)
    assert stage.state.phase is Phase.ACCUMULATE, "what is left is too little"
    stage.wait(1)
    stage.compute(ann, 1)
    again = stage.wait(REPEAT_S + 1)
    void = sent(again, m.Void)
    assert len(void) == 1
    assert sent(again, m.Void, bob.peer) == void
    assert sent(again, m.Void, ann.peer) == [], "it works, so it knows"
