"""An entry is read back only as it was signed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.credentials import PLAN, RECORD, Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.reading import open_head, open_record, read_record
from peer_agent.protocol.log.records import Entry, RecordHead, seal, whole_of
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.log.entries import SAMPLE


@given(st.data())
def test_not_one_bit_can_be_changed(data: st.DataObject) -> None:
    good = seal(SITE_KEY, SAMPLE)
    flat = bytearray(good.head.payload + good.head.signature)
    bit = data.draw(st.integers(0, len(flat) * 8 - 1))
    flat[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Problem, match="E218"):
        open_head(Signed(bytes(flat[:-64]), bytes(flat[-64:])), SITE_PUBLIC)


def test_another_signer_or_purpose_is_refused() -> None:
    record = SAMPLE
    with pytest.raises(Problem, match="E218"):
        open_record(seal(STRANGERS_KEY, record), SITE_PUBLIC)
    with pytest.raises(Problem, match="E218"):
        open_head(sign(SITE_KEY, PLAN, seal(SITE_KEY, record).head.payload), SITE_PUBLIC)


def test_a_head_with_its_contributions_is_the_whole_record() -> None:
    entry = seal(SITE_KEY, SAMPLE)
    head = open_head(entry.head, SITE_PUBLIC)
    assert type(head) is RecordHead
    assert whole_of(head, entry.contributions) == open_record(entry, SITE_PUBLIC) == read_record(entry) == SAMPLE


def test_a_record_of_another_version_is_refused() -> None:
    head = seal(SITE_KEY, SAMPLE).head
    assert head.payload.count(b'"version":2') == 1
    newer = sign(SITE_KEY, RECORD, head.payload.replace(b'"version":2', b'"version":3'))
    with pytest.raises(Problem, match="E218"):
        open_head(newer, SITE_PUBLIC)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b"\xff", b'{"run":"\xff"}', b'{"version":2}'])
def test_what_is_no_record_of_any_version_is_refused(payload: bytes) -> None:
    signed = sign(SITE_KEY, RECORD, payload)
    with pytest.raises(Problem, match="E218"):
        open_head(signed, SITE_PUBLIC)
    with pytest.raises(Problem, match="E218"):
        open_record(Entry(signed), SITE_PUBLIC)
