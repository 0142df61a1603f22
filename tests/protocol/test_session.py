"""Both ends of a session, without a socket: which handshakes open a link, and which messages are legal in which
state."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S, Role
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import ANY_RUN, PeerId, RunId
from peer_agent.protocol.session import (
    FRAMES,
    RECEIVABLE,
    Event,
    Failed,
    Identity,
    Link,
    MessageReceived,
    Opened,
    Session,
    SessionPhase,
    Side,
)
from peer_agent.protocol.wire import Frame, Kind, decode, encode, encode_frame
from tests.protocol.identities import (
    NOW,
    RELAY,
    RELAYS_CREDENTIAL,
    RUN,
    SITE_NAME,
    STRANGERS_KEY,
    TRAINERS_CREDENTIAL,
    relay,
    site,
    trainer,
)
from tests.protocol.strategies import MESSAGE_TYPES, frames, messages, sample


def listening(link: Link, identity: Identity | None = None, nonce: bytes = b"L" * 32) -> Session:
    who = identity or (site() if link is Link.CONTROL else relay())
    return Session(Side.LISTENING, link, who, nonce=nonce, server=who.name, version="1")


def dialling(link: Link, identity: Identity | None = None, server: str = "", nonce: bytes = b"D" * 32) -> Session:
    server = server or (SITE_NAME if link is Link.CONTROL else RELAY)
    return Session(Side.DIALLING, link, identity or trainer(), nonce=nonce, server=server, version="1")


def carry(sender: Session, receiver: Session, now: float) -> list[Event]:
    events = [receiver.receive(data, now) for data in sender.outgoing()]
    return [event for event in events if event is not None]


def shake_hands(dialler: Session, listener: Session, now: float = NOW, listeners_now: float = NOW) -> list[Event]:
    listener.start(listeners_now)
    dialler.start(now)
    events: list[Event] = []
    for _ in range(2):
        events += carry(listener, dialler, now)
        events += carry(dialler, listener, listeners_now)
    return events


def failures(events: list[Event]) -> list[tuple[str, bool]]:
    return [(event.fault.code, event.remote) for event in events if isinstance(event, Failed)]


def opened(link: Link) -> tuple[Session, Session]:
    dialler, listener = dialling(link), listening(link)
    shake_hands(dialler, listener)
    assert dialler.phase is listener.phase is SessionPhase.OPEN
    return dialler, listener


# The handshake


@given(
    st.sampled_from(tuple(Link)),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
    st.floats(-CLOCK_TOLERANCE_S + 1, CLOCK_TOLERANCE_S - 1),
)
def test_whoever_is_what_it_says_gets_in(link: Link, ours: bytes, theirs: bytes, ahead: float) -> None:
    dialler, listener = dialling(link, nonce=ours), listening(link, nonce=theirs)
    first, second = shake_hands(dialler, listener, listeners_now=NOW + ahead)
    assert first == Opened(TRAINERS_CREDENTIAL, 0.0)
    assert isinstance(second, Opened)
    assert second.credential == (None if link is Link.CONTROL else RELAYS_CREDENTIAL)
    assert second.offset_s == pytest.approx(ahead, abs=1e-3)
    assert dialler.phase is listener.phase is SessionPhase.OPEN


EXPIRED: dict[str, Any] = {"expires": int(NOW) - CLOCK_TOLERANCE_S - 1}
FUTURE: dict[str, Any] = {"not_before": int(NOW) + CLOCK_TOLERANCE_S + 61}


@pytest.mark.parametrize("link", Link)
@pytest.mark.parametrize(
    ("who", "code"),
    [
        (lambda: trainer(issued_by=STRANGERS_KEY), "E201"),
        (lambda: trainer(**EXPIRED), "E202"),
        (lambda: trainer(**FUTURE), "E203"),
        (lambda: trainer(holds=STRANGERS_KEY), "E209"),
    ],
)
def test_a_dialler_that_lies_is_refused(link: Link, who: Callable[[], Identity], code: str) -> None:
    listener = listening(link)
    assert failures(shake_hands(dialling(link, who()), listener)) == [(code, False), (code, True)]
    assert listener.peer is None


@pytest.mark.parametrize(
    ("who", "code"),
    [
        (lambda: relay(issued_by=STRANGERS_KEY), "E201"),
        (lambda: relay(**EXPIRED), "E202"),
        (lambda: relay(machine=PeerId("09" * 16)), "E217"),
        (lambda: msgspec.structs.replace(relay(), key=STRANGERS_KEY), "E217"),
        (lambda: msgspec.structs.replace(relay(), credential=None), "E217"),
        (lambda: msgspec.structs.replace(relay(), name="another"), "E217"),
    ],
)
def test_a_relay_that_lies_is_refused(who: Callable[[], Identity], code: str) -> None:
    events = shake_hands(dialling(Link.DATA), listening(Link.DATA, who()))
    assert failures(events) == [(code, False), (code, True)]


def test_a_relay_cannot_turn_the_clock_back_for_itself() -> None:
    """Our own clock decides whether a credential is valid, whatever time the relay's challenge gives."""
    expired = relay(expires=int(NOW) - CLOCK_TOLERANCE_S - 1)
    events = shake_hands(dialling(Link.DATA), listening(Link.DATA, expired), listeners_now=NOW - 200)
    assert failures(events)[0] == ("E202", False)


def test_a_false_site_is_refused() -> None:
    impostor = msgspec.structs.replace(site(), key=STRANGERS_KEY)
    assert failures(shake_hands(dialling(Link.CONTROL), listening(Link.CONTROL, impostor)))[0] == ("E217", False)


@pytest.mark.parametrize("ahead", [CLOCK_TOLERANCE_S + 1, -CLOCK_TOLERANCE_S - 1, 1e11])
def test_a_wrong_clock_is_told(ahead: float) -> None:
    events = shake_hands(dialling(Link.CONTROL), listening(Link.CONTROL), listeners_now=NOW + ahead)
    assert failures(events) == [("E204", False), ("E204", True)]


@pytest.mark.parametrize("time", [float("nan"), float("inf"), float("-inf")])
def test_a_clock_that_is_no_number_is_refused(time: float) -> None:
    events = shake_hands(dialling(Link.DATA), listening(Link.DATA), listeners_now=time)
    assert failures(events)[0] == ("E206", False)


def test_another_protocol_is_told_on_either_side() -> None:
    dialler, listener = dialling(Link.CONTROL), listening(Link.CONTROL)
    listener.start(NOW)
    challenge = decode(listener.outgoing()[0])
    assert isinstance(challenge, m.Challenge)
    dialler.receive(encode(msgspec.structs.replace(challenge, protocol=m.PROTOCOL + 1)), NOW)
    assert failures(carry(dialler, listener, NOW)) == [("E205", True)]

    dialler, listener = dialling(Link.CONTROL), listening(Link.CONTROL)
    listener.start(NOW)
    carry(listener, dialler, NOW)
    proof = decode(dialler.outgoing()[0])
    assert isinstance(proof, m.Authenticate)
    listener.receive(encode(msgspec.structs.replace(proof, protocol=m.PROTOCOL + 1)), NOW)
    assert failures(carry(listener, dialler, NOW)) == [("E205", True)]


def test_a_challenge_cannot_be_passed_on() -> None:
    """A false server forwards a real server's challenge to a trainer that dials it."""
    real = listening(Link.CONTROL)
    real.start(NOW)
    challenge = decode(real.outgoing()[0])
    assert isinstance(challenge, m.Challenge)
    victim = dialling(Link.CONTROL, server="https://false.example")
    renamed = msgspec.structs.replace(challenge, server="https://false.example")
    assert victim.receive(encode(renamed), NOW) is None
    assert failures(carry(victim, real, NOW)) == [("E209", False)]


def test_a_proof_cannot_be_used_again() -> None:
    dialler, listener = dialling(Link.CONTROL), listening(Link.CONTROL)
    listener.start(NOW)
    carry(listener, dialler, NOW)
    (proof,) = dialler.outgoing()
    assert listener.receive(proof, NOW) == Opened(TRAINERS_CREDENTIAL, 0.0)
    later = listening(Link.CONTROL, nonce=b"M" * 32)
    later.start(NOW)
    outcome = later.receive(proof, NOW)
    assert isinstance(outcome, Failed)
    assert outcome.fault.code == "E209"


@given(st.data())
def test_no_bit_of_a_handshake_can_be_changed_unnoticed(data: st.DataObject) -> None:
    """No flipped bit makes an end accept a different peer, or a clock beyond the tolerance."""
    link = data.draw(st.sampled_from(tuple(Link)))
    dialler, listener = dialling(link), listening(link)
    listener.start(NOW)
    for sender, receiver in ((listener, dialler), (dialler, listener), (listener, dialler)):
        for message in sender.outgoing():
            changed = bytearray(message)
            if data.draw(st.booleans()):
                bit = data.draw(st.integers(0, len(changed) * 8 - 1))
                changed[bit // 8] ^= 1 << bit % 8
            event = receiver.receive(bytes(changed), NOW)
            if isinstance(event, Opened):
                assert event.credential in (None, TRAINERS_CREDENTIAL, RELAYS_CREDENTIAL)
                assert abs(event.offset_s) <= CLOCK_TOLERANCE_S


# Legal messages by state

STATES = list(RECEIVABLE)


def session_in(side: Side, link: Link, phase: SessionPhase) -> Session:
    """Return a session that a real handshake has brought to this phase."""
    dialler, listener = dialling(link), listening(link)
    ours = dialler if side is Side.DIALLING else listener
    listener.start(NOW)
    listeners_turn = True
    while ours.phase is not phase:
        sender, receiver = (listener, dialler) if listeners_turn else (dialler, listener)
        carry(sender, receiver, NOW)
        listeners_turn = not listeners_turn
    ours.outgoing()
    return ours


ILLEGAL = [(state, cls) for state in STATES for cls in MESSAGE_TYPES if cls not in RECEIVABLE[state]]
LEGAL = [
    (state, cls)
    for state in STATES
    for cls in MESSAGE_TYPES
    if cls in RECEIVABLE[state] and state[2] is SessionPhase.OPEN
]


def named(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else value.__name__


@pytest.mark.parametrize(("state", "cls"), ILLEGAL, ids=named)
def test_what_the_table_does_not_allow_is_refused(state: tuple[Side, Link, SessionPhase], cls: type) -> None:
    session = session_in(*state)
    event = session.receive(encode(sample(cls)), NOW)
    assert isinstance(event, Failed)
    assert (event.fault.code, event.remote, session.phase) == ("E208", False, SessionPhase.CLOSED)
    (said,) = session.outgoing()
    assert decode(said) == m.Refusal(code="E208", text=event.fault.text)


@pytest.mark.parametrize(("state", "cls"), LEGAL, ids=named)
def test_what_the_table_allows_is_received(state: tuple[Side, Link, SessionPhase], cls: type) -> None:
    message = sample(cls)
    event = session_in(*state).receive(encode(message), NOW)
    if cls is m.Refusal:
        assert event == Failed(Fault("", ""), remote=True)
    else:
        assert event == MessageReceived(message)


@pytest.mark.parametrize("state", STATES, ids=named)
@pytest.mark.parametrize("kind", [Kind.GRADIENT, Kind.AVERAGE])
def test_frames_go_one_way_on_open_data_links(state: tuple[Side, Link, SessionPhase], kind: Kind) -> None:
    frame = Frame(kind, RUN, 1, 1, 1, 0, 0, 0, b"chunk")
    event = session_in(*state).receive(encode_frame(frame), NOW)
    if state[2] is SessionPhase.OPEN and kind in FRAMES.get(state[:2], ()):
        assert event == MessageReceived(frame)
    else:
        assert isinstance(event, Failed)
        assert event.fault.code == "E208"


def test_every_state_that_can_be_reached_has_its_row() -> None:
    phases = {
        Side.DIALLING: {SessionPhase.AWAITING_CHALLENGE, SessionPhase.AWAITING_WELCOME, SessionPhase.OPEN},
        Side.LISTENING: {SessionPhase.AWAITING_PROOF, SessionPhase.OPEN},
    }
    assert set(STATES) == {(side, link, phase) for side in Side for link in Link for phase in phases[side]}


def test_the_two_ends_agree_on_what_is_said() -> None:
    """Each message that one end of a link may send is legal in some state of the other end."""
    everything = set().union(*RECEIVABLE.values())
    assert everything == set(MESSAGE_TYPES)


def test_the_table_is_not_open_to_changes_of_one_link_by_another() -> None:
    opened_links = [RECEIVABLE[Side.LISTENING, link, SessionPhase.OPEN] for link in Link]
    assert all(one & other == {m.Refusal} for one, other in combinations(opened_links, 2))
    frames_of = [FRAMES.get((Side.LISTENING, link), frozenset()) for link in Link]
    assert all(not one & other for one, other in combinations(frames_of, 2))


# Bad input


@given(st.sampled_from(STATES), st.lists(st.binary(max_size=100) | messages().map(encode) | frames().map(encode_frame)))
def test_nothing_that_comes_ever_raises(state: tuple[Side, Link, SessionPhase], stream: list[bytes]) -> None:
    session = session_in(*state)
    for data in stream:
        event = session.receive(data, NOW)
        if isinstance(event, Failed):
            assert session.phase is SessionPhase.CLOSED
            assert event.remote or isinstance(decode(session.outgoing()[-1]), m.Refusal)


def test_garbage_and_what_is_too_long_have_their_numbers() -> None:
    _, listener = opened(Link.DATA)
    garbage = listener.receive(b"\x01garbage", NOW)
    assert isinstance(garbage, Failed)
    assert garbage.fault.code == "E206"
    _, listener = opened(Link.DATA)
    overlong = listener.receive(bytes(m.MAX_MESSAGE + 1), NOW)
    assert isinstance(overlong, Failed)
    assert overlong.fault.code == "E210"


@pytest.mark.parametrize("link", Link)
def test_stranger_cannot_send_more_than_a_handshake(link: Link) -> None:
    for end in (listening(link), dialling(link)):
        end.start(NOW)
        overlong = end.receive(bytes(m.MAX_HANDSHAKE + 1), NOW)
        assert isinstance(overlong, Failed)
        assert overlong.fault.code == "E210"


def test_a_closed_link_is_silent() -> None:
    dialler, listener = opened(Link.CONTROL)
    listener.refuse(Fault.of("E214"), retry_after_s=3.0)
    (event,) = carry(listener, dialler, NOW)
    assert event == Failed(Fault("E214", Fault.of("E214").text), remote=True, retry_after_s=3.0)
    for session in (dialler, listener):
        session.send(m.Leave(run=RUN))
        assert session.outgoing() == []
        assert session.receive(encode(m.Leave(run=RUN)), NOW) is None


def test_a_hint_that_is_no_number_is_no_message() -> None:
    dialler, _ = opened(Link.CONTROL)
    event = dialler.receive(encode(m.Refusal(code="E214", text="", retry_after_s=float("nan"))), NOW)
    assert isinstance(event, Failed)
    assert (event.fault.code, event.retry_after_s) == ("E206", -1.0)


def test_a_long_reason_is_shortened_rather_than_lost() -> None:
    dialler, listener = opened(Link.CONTROL)
    listener.refuse(Fault("E206", "x" * 5000))
    assert failures(carry(listener, dialler, NOW)) == [("E206", True)]


def test_what_is_sent_before_the_link_is_open_is_not_sent() -> None:
    dialler = dialling(Link.CONTROL)
    dialler.send(m.Leave(run=RUN))
    assert dialler.outgoing() == []


def test_both_kinds_of_body_are_carried() -> None:
    dialler, listener = opened(Link.DATA)
    frame = Frame(Kind.GRADIENT, RUN, 1, 1, 1, 0, 0, 0, b"chunk")
    fetch = m.FetchRecords(run=RUN, first=0)
    dialler.send(frame)
    dialler.send(fetch)
    assert carry(dialler, listener, NOW) == [MessageReceived(frame), MessageReceived(fetch)]


# Listeners and their certificates


@pytest.mark.parametrize("role", [Role.AUXILIARY, Role.TRAINER])
def test_a_member_of_our_run_may_listen(role: Role) -> None:
    dialler, listener = dialling(Link.DATA), listening(Link.DATA, relay(role=role, run=RUN))
    assert failures(shake_hands(dialler, listener)) == []
    assert dialler.peer is not None
    assert dialler.peer.role is role


def test_a_relay_dials_a_member_of_any_run() -> None:
    member = relay(role=Role.AUXILIARY, run=RUN)
    dialler = dialling(Link.DATA, trainer(role=Role.RELAY, run=ANY_RUN))
    assert failures(shake_hands(dialler, listening(Link.DATA, member))) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"role": Role.AUXILIARY, "run": RunId("bb" * 16)},
        {"role": Role.TRAINER, "run": ANY_RUN},
        {"role": Role.READER, "run": RUN},
    ],
    ids=["of another run", "of all runs", "who only reads"],
)
def test_nobody_else_may_listen(changes: dict[str, Any]) -> None:
    events = shake_hands(dialling(Link.DATA), listening(Link.DATA, relay(**changes)))
    assert failures(events) == [("E217", False), ("E217", True)]


@pytest.mark.parametrize(("seen", "own"), [("aa", "bb"), ("aa", ""), ("", "bb")])
def test_whoever_stands_between_two_ends_is_found(seen: str, own: str) -> None:
    """The dialler sees a certificate that is not the listener's."""
    dialler = Session(Side.DIALLING, Link.DATA, trainer(), nonce=b"D" * 32, server=RELAY, version="1", fingerprint=seen)
    listener = Session(Side.LISTENING, Link.DATA, relay(), nonce=b"L" * 32, server=RELAY, version="1", fingerprint=own)
    assert failures(shake_hands(dialler, listener))[0] == ("E209", False)
    assert listener.peer is None
