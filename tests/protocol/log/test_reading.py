"""An entry is read back only as it was signed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.credentials import PLAN, Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.reading import open_head, open_record
from peer_agent.protocol.log.records import seal
from tests.protocol.cast import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
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
