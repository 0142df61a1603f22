"""A process counts its bytes by kind of message, and other processes can read the counts."""

from pathlib import Path

import pytest

from peer_agent.network import link, relay_server
from peer_agent.protocol import messages as m
from peer_agent.protocol.session import Link, Side
from peer_agent.protocol.wire import Frame, Kind, encode, encode_frame
from tests.benchmarks.rig.tally import (
    AVERAGE,
    CONTROL,
    GRADIENT,
    LOG,
    PROBE,
    WORDS,
    CountedSession,
    count_into,
    counted,
    framed,
    row_of,
)
from tests.protocol.identities import NOW, RELAY, RUN, relay, trainer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (link, relay_server):
        monkeypatch.setattr(module, "Session", module.__dict__["Session"])
    monkeypatch.setattr(CountedSession, "counts", CountedSession.counts)
    return tmp_path / "peer"


def frame(kind: Kind, fence: int = 1) -> bytes:
    return encode_frame(Frame(kind, RUN, 1, fence, 1, 0, 0, 0, b"12345"))


@pytest.mark.parametrize(
    ("data", "row"),
    [
        (frame(Kind.GRADIENT), GRADIENT),
        (frame(Kind.AVERAGE), AVERAGE),
        (frame(Kind.AVERAGE, fence=0), LOG),
        (frame(Kind.PROBE), PROBE),
        (encode(m.FetchSpan(run=RUN, index=1, span=0)), WORDS),
    ],
)
def test_a_message_counts_as_what_it_is(data: bytes, row: int) -> None:
    assert row_of(Link.DATA, data) == row
    assert row_of(Link.CONTROL, data) == CONTROL


@pytest.mark.parametrize(("size", "more"), [(125, 2), (126, 4), (65_535, 4), (65_536, 10)])
def test_a_websocket_frame_is_as_long_as_the_standard_says(size: int, more: int) -> None:
    assert framed(size, is_masked=False) == size + more
    assert framed(size, is_masked=True) == size + more + 4


def test_what_a_process_counts_others_read_while_it_runs(folder: Path) -> None:
    assert not counted(folder).any(), "it has not begun"
    count_into(folder)
    assert {module.__dict__["Session"] for module in (link, relay_server)} == {CountedSession}
    ends = [
        CountedSession(side, Link.DATA, identity, nonce=bytes([number]) * 32, server=RELAY, version="")
        for number, (side, identity) in enumerate(((Side.LISTENING, relay()), (Side.DIALLING, trainer())))
    ]
    listener, dialler = ends
    listener.start(NOW)
    handshake = 0
    for sender, receiver in ((listener, dialler), (dialler, listener), (listener, dialler)):
        for data in sender.outgoing():
            handshake += framed(len(data), is_masked=sender is dialler)
            receiver.receive(data, NOW)
    dialler.send(Frame(Kind.GRADIENT, RUN, 1, 1, 1, 0, 0, 0, b"12345"))
    (data,) = dialler.outgoing()
    listener.receive(data, NOW)
    found = counted(folder)
    assert found[WORDS].tolist() == [handshake, handshake]
    assert found[GRADIENT].tolist() == [len(data) + 2 + 4] * 2
    assert found.sum() == 2 * (handshake + len(data) + 6)
