"""A log entry can be read only if it has not changed since it was signed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol.credentials import PLAN, RECORD, Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import (
    ChunkRange,
    Contribution,
    Entry,
    RecordHead,
    SpanEntry,
    Unit,
    from_lines,
    open_head,
    open_record,
    read_record,
    seal,
    whole_of,
)
from tests.golden import FOLDER
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.log.entries import SAMPLE, rooted
from tests.protocol.strategies import sample


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


KEPT = rooted(  # the content of tests/golden/entry.lines
    replace(
        SAMPLE,
        index=7,
        step=6,
        elements=81_000,
        chunk_elements=16_384,
        spans=(replace(sample(SpanEntry), first=0, stop=5, root="ab" * 32, sum_squares=1.25),),
        contributions=(
            replace(sample(Contribution), units=(Unit(1, 2, 4, 8),), weight=28, credit=7, included=(ChunkRange(0, 5),)),
            replace(sample(Contribution), slot=1, stale=(Unit(1, 2, 8, 12),), included=(ChunkRange(1, 4),)),
        ),
        mix=(0.25, 0.75),
    )
)


def test_an_entry_of_version_0_1_0_is_read_as_it_was_written() -> None:
    entry = from_lines((FOLDER / "entry.lines").read_bytes())
    assert entry == seal(SITE_KEY, KEPT)
    assert open_record(entry, SITE_PUBLIC) == KEPT


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
