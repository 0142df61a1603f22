"""A database that is behind a relay's log gets its entries back before a round begins (rule 16)."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import reasons
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.recovery import HAND_IN_S, WINDOW_S
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Entry
from tests.protocol.coordinator.stage import RUN, Stage, notes, peer_of, sealed, sent


def handed_in(first: int, last: int) -> m.Records:
    """Return records `first` to `last` of a run. The coordinator reads only the first one's head."""
    stage = Stage(index=first - 1, step=first - 1)
    stage.relay()
    stage.trainer("ada")
    records = tuple(sealed(replace(stage.commit(), index=index)) for index in range(first, last + 1))
    return m.Records(run=RUN, first=first, last=last, records=records)


RECORDS = handed_in(8, 9)


def adopted(commands: list[e.Command]) -> list[tuple[Entry, ...]]:
    return [command.records for command in commands if isinstance(command, e.Adopt)]


def restored() -> tuple[Stage, PeerId]:
    """Return a run whose database was restored at entry 7, and a relay whose log ends at entry 9."""
    stage = Stage(index=7, step=7)
    relay = stage.relay(log_index=9)
    stage.logs[relay] = 9
    return stage, relay


def test_the_relays_records_are_appended_and_the_next_host_goes_on() -> None:
    stage, relay = restored()
    ada = stage.trainer("ada")
    for _ in range(8):
        stage.compute(ada)
        stage.wait(1.0)
    assert stage.state.phase is Phase.ACCUMULATE, "a round would begin a second branch"
    assert stage.state.waiting == reasons.RECOVERING
    assert adopted(stage.say(relay, RECORDS)) == [RECORDS.records]
    assert stage.handle(e.Adopted(relay, 2)) == [e.Abdicate()]


def test_trainers_that_are_ahead_keep_their_state_until_a_relay_has_come() -> None:
    stage = Stage(index=7, step=7)
    ada = stage.trainer("ada")
    ada.step = ada.index = 9
    assert not sent(stage.hello(ada), m.Greeting)
    relay = stage.relay(log_index=9)
    assert adopted(stage.say(relay, RECORDS))
    assert not sent(stage.hello(ada), m.Greeting)


def test_without_a_relay_that_is_ahead_they_are_greeted_after_a_while() -> None:
    stage = Stage(index=7, step=7)
    ada = stage.trainer("ada")
    ada.step = ada.index = 9
    assert not sent(stage.hello(ada), m.Greeting)
    relay = stage.relay()
    stage.logs[relay] = 7
    assert sent(stage.wait(WINDOW_S + 1.0), m.Rehello, ada.peer)
    said = stage.hello(ada)
    assert sent(said, m.Greeting, ada.peer)
    assert notes(said) == ["lost steps"]
    assert not notes(stage.hello(ada)), "told once"


def test_later_a_trainer_that_is_ahead_is_greeted_at_once() -> None:
    stage = Stage(index=7, step=7)
    stage.relay()
    stage.wait(WINDOW_S + 1.0)
    ada = stage.trainer("ada")
    ada.step = ada.index = 9
    assert sent(stage.hello(ada), m.Greeting, ada.peer)


@pytest.mark.parametrize("phase", [Phase.OFFER, Phase.REDUCE])
def test_an_open_round_is_void_when_a_relay_turns_out_to_be_ahead(phase: Phase) -> None:
    stage = Stage(index=7, step=7)
    stage.relay()
    ada = stage.trainer("ada")
    stage.accumulate()
    if phase is Phase.REDUCE:
        stage.offers(ada)
        stage.close()
    assert stage.state.phase is phase
    second = stage.relay("second", log_index=9)
    commands = stage.say(second, RECORDS)
    assert sent(commands, m.Void, ada.peer)
    assert adopted(commands)


def test_a_commit_under_way_is_finished() -> None:
    stage = Stage(index=7, step=7)
    stage.relay()
    ada = stage.trainer("ada")
    stage.accumulate()
    stage.offers(ada)
    stage.close()
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT
    assert not stage.say(stage.relay("second", log_index=9), RECORDS)
    stage.persist()


def test_a_relay_that_hands_nothing_in_is_waited_for_once() -> None:
    stage, relay = restored()
    ada = stage.trainer("ada")
    stage.wait(HAND_IN_S + 1.0)
    stage.relay(log_index=9)
    stage.logs[relay] = 9
    stage.accumulate(ada)
    assert stage.state.phase is Phase.OFFER


def test_records_of_no_use_end_the_wait() -> None:
    stage, relay = restored()
    ada = stage.trainer("ada")
    ada.step = ada.index = 9
    stage.hello(ada)
    stage.say(relay, RECORDS)
    said = stage.handle(e.Adopted(relay, 0))
    assert sent(said, m.Rehello, ada.peer)
    assert sent(stage.hello(ada), m.Greeting, ada.peer)


def test_records_that_do_not_follow_the_log_are_not_appended() -> None:
    stage, relay = restored()
    gap = replace(RECORDS, first=9, records=RECORDS.records[1:])
    assert stage.say(relay, gap) == [e.Branch(gap.records)]
    other, relay = Stage(index=7, step=7, digest="ab" * 32), peer_of("relay")
    other.relay(log_index=9)
    assert other.say(relay, RECORDS) == [e.Branch(RECORDS.records)], "it follows another entry 7"


@pytest.mark.parametrize("forgery", ["signature", "none"])
def test_forged_records_void_no_round(forgery: str) -> None:
    stage = Stage(index=7, step=7)
    relay = stage.relay(log_index=9)
    stage.logs[relay] = 9
    ada = stage.trainer("ada")
    stage.wait(HAND_IN_S)
    stage.accumulate(ada)
    head = replace(RECORDS.records[0].head, signature=bytes(64))
    records = (Entry(head, RECORDS.records[0].contributions),) if forgery == "signature" else ()
    assert not stage.say(relay, replace(RECORDS, records=records))
    assert stage.state.phase is Phase.OFFER


def test_relay_cannot_make_a_run_wait_again_and_again() -> None:
    stage, relay = restored()
    ada = stage.trainer("ada")
    stage.wait(HAND_IN_S + 1.0)
    for log_index in (7, 9):
        stage.relay(log_index=log_index)
    assert not stage.state.is_recovering
    stage.logs[relay] = 9
    stage.accumulate(ada, limit_s=60.0)
    assert stage.state.phase is Phase.OFFER


def test_one_persons_word_does_not_hold_up_a_run_with_a_relay() -> None:
    stage = Stage(index=7, step=7)
    stage.relay()
    ada, bob = stage.trainer("ada"), stage.trainer("bob")
    for liar in (ada, stage.trainer("ada2", person="ada")):
        liar.step = liar.index = 9
        assert sent(stage.hello(liar), m.Greeting, liar.peer)
    assert not stage.state.is_recovering
    bob.step = bob.index = 9
    assert not sent(stage.hello(bob), m.Greeting), "two people are worth waiting for a relay"


def test_nobody_but_a_log_keeper_hands_records_in() -> None:
    stage, _ = restored()
    assert not adopted(stage.say(stage.trainer("ada").peer, RECORDS))


def test_branch_that_a_relay_has_replaced_may_be_credited() -> None:
    stage = Stage(index=20, step=20)
    relay = stage.relay()
    assert stage.say(relay, RECORDS) == [e.Branch(RECORDS.records)]
