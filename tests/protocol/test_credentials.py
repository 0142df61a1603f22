"""A credential is valid for a limited time, and changing any bit invalidates it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.credentials import (
    CLOCK_TOLERANCE_S,
    CREDENTIAL,
    LINK,
    PLAN,
    RECORD,
    REQUEST,
    Credential,
    Signed,
    is_signed_by,
    public_bytes,
    sign,
    verify,
)
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import ANY_RUN, RunId
from tests.protocol.identities import (
    NOW,
    RELAYS_CREDENTIAL,
    RUN,
    SITE_KEY,
    SITE_PUBLIC,
    STRANGERS_KEY,
    TRAINER,
    TRAINERS_CREDENTIAL,
    trainers_credential,
)
from tests.protocol.strategies import structs

PURPOSES = (CREDENTIAL, LINK, RECORD, PLAN, REQUEST)


def code(outcome: Credential | Fault) -> str:
    return outcome.code if isinstance(outcome, Fault) else "good"


def test_a_good_credential_is_read() -> None:
    assert verify(trainers_credential(), SITE_PUBLIC, NOW) == TRAINERS_CREDENTIAL


@given(structs(Credential))
def test_every_credential_survives_its_signature(credential: Credential) -> None:
    signed = sign(SITE_KEY, CREDENTIAL, msgspec.msgpack.encode(credential))
    now = min(max(NOW, credential.not_before), credential.expires)
    if credential.not_before <= credential.expires and abs(now) < 2**53:
        assert verify(signed, SITE_PUBLIC, now) == credential


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (TRAINERS_CREDENTIAL.not_before - CLOCK_TOLERANCE_S - 1, "E203"),
        (TRAINERS_CREDENTIAL.not_before - CLOCK_TOLERANCE_S, "good"),
        (TRAINERS_CREDENTIAL.expires + CLOCK_TOLERANCE_S, "good"),
        (TRAINERS_CREDENTIAL.expires + CLOCK_TOLERANCE_S + 1, "E202"),
    ],
)
def test_a_credential_holds_for_its_time_and_five_minutes(now: float, expected: str) -> None:
    assert code(verify(trainers_credential(), SITE_PUBLIC, now)) == expected


def test_only_the_site_can_issue_one() -> None:
    assert code(verify(trainers_credential(STRANGERS_KEY), SITE_PUBLIC, NOW)) == "E201"


@given(st.data())
def test_not_one_bit_can_be_changed(data: st.DataObject) -> None:
    good = trainers_credential()
    whole = bytearray(good.payload + good.signature)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    bad = Signed(bytes(whole[:-64]), bytes(whole[-64:]))
    assert code(verify(bad, SITE_PUBLIC, NOW)) == "E201"


@given(st.binary(max_size=100))
def test_what_the_site_signed_but_is_no_credential_is_refused(payload: bytes) -> None:
    assert code(verify(sign(SITE_KEY, CREDENTIAL, payload), SITE_PUBLIC, NOW)) == "E201"


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("other", PURPOSES)
def test_a_signature_serves_one_purpose(purpose: bytes, other: bytes) -> None:
    assert is_signed_by(SITE_PUBLIC, other, sign(SITE_KEY, purpose, b"payload")) == (purpose == other)


def test_no_purpose_begins_another() -> None:
    assert [(a, b) for a in PURPOSES for b in PURPOSES if a != b and b.startswith(a)] == []


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_what_is_no_key_has_signed_nothing(key: bytes) -> None:
    assert not is_signed_by(key, LINK, sign(SITE_KEY, LINK, b""))


def test_public_bytes_are_the_key_that_verifies() -> None:
    assert is_signed_by(public_bytes(STRANGERS_KEY), LINK, sign(STRANGERS_KEY, LINK, b"x"))


def test_a_peer_is_called_by_its_machine_and_speaks_for_its_run() -> None:
    assert TRAINERS_CREDENTIAL.peer == TRAINER
    assert TRAINERS_CREDENTIAL.covers(RUN)
    assert not TRAINERS_CREDENTIAL.covers(RunId("bb" * 16))
    assert not TRAINERS_CREDENTIAL.covers(ANY_RUN)
    assert RELAYS_CREDENTIAL.covers(RUN)
