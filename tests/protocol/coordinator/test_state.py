"""What follows from what a coordinator knows: who reduces, who sits out, whether the run can go on."""

from peer_agent.protocol import messages as m
from tests.protocol.coordinator.scenes import four, reducing


def test_somebody_who_cannot_be_dialled_or_does_not_reduce_is_planned_no_part() -> None:
    stage, _, relays = reducing({}, {"url": ""}, {"reduces": False})
    assert {span.reducer for span in stage.spans()} == {relays[0]}


def test_a_trainers_word_that_it_reduces_is_not_taken() -> None:
    stage, trainers, (relay,) = reducing()
    hello = m.Hello(
        run=stage.state.run, accumulator=trainers[0].accumulator, url="ws://me", reduces=True, keeps_log=True
    )
    stage.say(trainers[0].peer, hello)
    assert [member.peer for member in stage.state.reducers()] == [relay]
    assert not stage.member(trainers[0]).keeps_log


def test_an_hour_is_the_longest() -> None:
    stage, honest, culprit = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, culprit)
    conduct = stage.member(culprit).conduct
    conduct.out_until, conduct.out_since = stage.state.rounds + 16, stage.state.now
    stage.wait(3590)
    assert stage.state.sits_out(conduct)
    stage.wait(20)
    assert not stage.state.sits_out(conduct)
