"""A message of a round is repeated for a peer whose reports show that it has not heard it, and for no other."""

from itertools import pairwise

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.repeating import AGAIN_S
from peer_agent.protocol.coordinator.state import Phase
from tests.protocol.coordinator.scenes import progress, reducing
from tests.protocol.coordinator.stage import RUN, notes, sent


def plans(commands: list[e.Command]) -> list[tuple[str, ...]]:
    return [command.keepers + command.peers for command in commands if isinstance(command, e.Announce)]


def test_nothing_is_repeated_for_peers_that_have_heard_everything() -> None:
    stage, _, (relay,) = reducing()
    said = [command for turn in range(8) for command in (*stage.wait(1.0), *progress(stage, relay, turn, 0, 0, 0))]
    assert plans(said) == []
    assert not sent(said, m.Drop)


def test_a_lost_plan_is_repeated_for_contributors_and_reducers() -> None:
    """No other peer has to have begun: the plan may be lost on the way to all of them."""
    stage, trainers, (relay,) = reducing()
    cut = m.Heard(stage.state.step, stage.state.fence, stage.round.attempt, has_plan=False)
    stage.deaf = {trainers[3].peer: cut, relay: None}
    said = stage.wait(AGAIN_S - 0.5)
    assert plans(said) == []
    said = stage.wait(1.0)
    assert sorted(plans(said)) == sorted([(trainers[3].peer,), (relay,)])
    assert sent(said, m.Listeners, trainers[3].peer)
    said = stage.wait(AGAIN_S - 1.0)
    assert plans(said) == [], "once a round trip"


def test_a_reducer_that_reports_on_an_earlier_attempt_gets_the_new_plan() -> None:
    stage, _, relays = reducing({}, {})
    old = stage.place()
    stage.handle(e.Lost(relays[0]))
    assert stage.round.attempt == 2
    stage.wait(AGAIN_S)
    said = stage.say(relays[1], m.Progress(**old, received=()))
    assert plans(said) == [(relays[1],)]


def test_a_plan_is_not_repeated_for_those_who_have_no_part_in_it() -> None:
    stage, _, _ = reducing()
    onlooker = stage.trainer("onlooker")
    stage.deaf = {onlooker.peer: None}
    assert plans(stage.wait(3 * AGAIN_S)) == []


def test_a_lost_drop_is_repeated_for_the_reducer_and_the_sender() -> None:
    stage, trainers, (relay,) = reducing()
    deaf = stage.heard_by(stage.member(trainers[0]))
    assert deaf is not None
    stage.round.dropped = {0}
    assert not sent(stage.wait(2 * AGAIN_S), m.Drop)
    stage.deaf = {trainers[0].peer: deaf, relay: replace(deaf, dropped=0)}
    said = stage.wait(0.5)
    assert len(sent(said, m.Drop, relay)) == 1
    assert len(sent(said, m.Drop, trainers[0].peer)) == 1, "to each that lacks it, and to no other"


def test_a_peer_that_never_hears_is_told_ever_more_rarely() -> None:
    stage, trainers, (relay,) = reducing()
    stage.deaf = {trainers[0].peer: None}
    told: list[float] = []
    begun = stage.now
    while stage.now < begun + 40 and stage.state.phase is Phase.REDUCE:
        told += [stage.now - begun] * len(plans(stage.wait(0.5)))
        progress(stage, relay, *[int(stage.now - begun) // 8] * 4)
    assert len(told) == 4
    assert told == sorted(told)
    assert [round(later - early) for early, later in pairwise(told)] == [5, 10, 20]


def test_no_plan_is_repeated_for_work_that_was_revoked() -> None:
    stage, trainers, (relay,) = reducing()
    stage.say(relay, m.SlotRefused(**stage.place(), slot=0, chunk=0, code="E211"))
    stage.deaf = {trainers[0].peer: None}
    assert plans(stage.wait(3 * AGAIN_S)) == []


def test_a_relay_without_a_part_is_told_nothing_again() -> None:
    stage, _, _ = reducing()
    idle = stage.relay("idle")
    stage.round.dropped = {0}
    stage.deaf = {idle: m.Heard(0, 1, 1, has_plan=True, dropped=0)}
    assert not sent(stage.wait(3 * AGAIN_S), m.Drop)


def test_a_lost_void_is_repeated_until_it_is_heard() -> None:
    stage, trainers, _ = reducing()
    stage.wait(1.0)
    heard = stage.heard_by(stage.member(trainers[0]))
    stage.handle(e.Directed("paused"))  # no round follows
    while stage.state.phase is Phase.REDUCE:
        stage.wait(0.25)
    assert "void" in notes(stage.said)
    stage.deaf = {trainers[0].peer: heard}
    said = stage.wait(AGAIN_S + 0.5)
    (void,) = sent(said, m.Void, trainers[0].peer)
    assert isinstance(void, m.Void)
    assert (void.step, void.attempt) == (0, 1)
    assert not sent(said, m.Void, trainers[1].peer)
    stage.deaf = {}
    assert not sent(stage.wait(3 * AGAIN_S), m.Void)


def test_a_report_says_as_much_as_a_heartbeat() -> None:
    stage, trainers, _ = reducing()
    ann = trainers[0]
    stage.wait(AGAIN_S, alive=False)
    report = m.Report(
        run=RUN,
        accumulator=ann.accumulator,
        done=tuple(m.DoneUnit(unit, base) for unit, base in ann.done.items()),
        loss_tokens=0,
        loss_sum=0.0,
        step=ann.step,
        index=ann.index,
        digest="",
        heard=m.Heard(ann.step - 1, stage.state.fence, 9, has_plan=True),
    )
    assert plans(stage.say(ann.peer, report)) == [(ann.peer,)], "what it names is an earlier step's attempt"
