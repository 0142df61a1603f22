"""A commit record can be sealed, kept as two lines, and not changed."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.credentials import PLAN, Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.records import Record, Unit, digest_of, from_lines, open_record, seal, to_lines
from tests.protocol.cast import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.strategies import sample, structs

finite = structs(Record).filter(
    lambda record: (
        all(abs(span.sum_squares) != float("inf") for span in record.spans)
        and float("inf") not in {abs(value) for value in (record.loss, *msgspec.structs.astuple(record.scalars))}
    )
)


@given(finite)
def test_every_record_comes_back(record: Record) -> None:
    sealed = seal(SITE_KEY, record)
    assert open_record(sealed, SITE_PUBLIC) == record
    assert from_lines(to_lines(sealed)) == sealed
    assert json.loads(to_lines(sealed).splitlines()[0])["index"] == record.index


@given(finite)
def test_sealing_is_deterministic(record: Record) -> None:
    again = msgspec.json.decode(msgspec.json.encode(record), type=Record)
    assert seal(SITE_KEY, again) == seal(SITE_KEY, record)
    assert digest_of(seal(SITE_KEY, again)) == digest_of(seal(SITE_KEY, record))


@given(st.data())
def test_not_one_bit_can_be_changed(data: st.DataObject) -> None:
    good = seal(SITE_KEY, sample(Record))
    whole = bytearray(good.payload + good.signature)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Problem, match="E218"):
        open_record(Signed(bytes(whole[:-64]), bytes(whole[-64:])), SITE_PUBLIC)


def test_another_signer_or_purpose_is_refused() -> None:
    record = sample(Record)
    with pytest.raises(Problem, match="E218"):
        open_record(seal(STRANGERS_KEY, record), SITE_PUBLIC)
    with pytest.raises(Problem, match="E218"):
        open_record(sign(SITE_KEY, PLAN, seal(SITE_KEY, record).payload), SITE_PUBLIC)


def test_a_digest_names_what_was_said_whoever_signed_it() -> None:
    assert digest_of(seal(SITE_KEY, sample(Record))) == digest_of(seal(STRANGERS_KEY, sample(Record)))


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\nzz\n", b"{}\n00\nmore", b"{}\n00", b"{}\n\xff\n"])
def test_what_is_no_two_lines_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"lines|unpack|hexadecimal|decode"):
        from_lines(data)


def test_a_unit_knows_its_samples() -> None:
    assert Unit(0, 0, 5, 12).samples == 7
