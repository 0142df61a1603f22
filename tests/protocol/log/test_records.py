"""A commit record can be sealed, kept as two lines, and not changed."""

import hashlib
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.credentials import PLAN, Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.reading import open_head, open_record
from peer_agent.protocol.log.records import (
    ChunkRange,
    Contribution,
    Entry,
    Record,
    Unit,
    digest_of,
    from_lines,
    is_everywhere,
    seal,
    to_lines,
    whole,
)
from tests.golden import FOLDER
from tests.protocol.cast import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.strategies import sample, structs


def rooted(record: Record) -> Record:
    """The same facts, with the root over its contributions."""
    facts = {name: getattr(record, name) for name in record.__struct_fields__}
    return whole(
        **{name: facts[name] for name in facts if name not in {"version", "contributors", "contributions_root"}}
    )


records = structs(Record).map(rooted)
SAMPLE = rooted(sample(Record))


@given(records)
def test_every_record_comes_back(record: Record) -> None:
    sealed = seal(SITE_KEY, record)
    assert open_record(sealed, SITE_PUBLIC) == record
    assert from_lines(to_lines(sealed)) == sealed
    assert json.loads(to_lines(sealed).splitlines()[0])["index"] == record.index


@given(records)
def test_sealing_is_deterministic(record: Record) -> None:
    again = msgspec.json.decode(msgspec.json.encode(record), type=Record)
    assert seal(SITE_KEY, again) == seal(SITE_KEY, record)
    assert digest_of(seal(SITE_KEY, again)) == digest_of(seal(SITE_KEY, record))


@given(st.data())
def test_not_one_bit_can_be_changed(data: st.DataObject) -> None:
    good = seal(SITE_KEY, SAMPLE)
    flat = bytearray(good.head.payload + good.head.signature)
    bit = data.draw(st.integers(0, len(flat) * 8 - 1))
    flat[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Problem, match="E218"):
        open_head(Signed(bytes(flat[:-64]), bytes(flat[-64:])), SITE_PUBLIC)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": math.inf},
        {"loss": math.nan},
        {"scalars": msgspec.structs.replace(SAMPLE.scalars, clip=-math.inf)},
        {"tokens": 2**63},
        {"samples": 2**64},
        {"contributions": (msgspec.structs.replace(sample(Contribution), credit=2**63),)},
    ],
    ids=["infinite", "not a number", "infinite scalar", "too many tokens", "64 bits and more", "too much credit"],
)
def test_what_could_not_be_read_again_is_not_sealed(changes: dict[str, Any]) -> None:
    with pytest.raises(Problem, match="E230"):
        seal(SITE_KEY, msgspec.structs.replace(SAMPLE, **changes))


def test_another_signer_or_purpose_is_refused() -> None:
    record = SAMPLE
    with pytest.raises(Problem, match="E218"):
        open_record(seal(STRANGERS_KEY, record), SITE_PUBLIC)
    with pytest.raises(Problem, match="E218"):
        open_head(sign(SITE_KEY, PLAN, seal(SITE_KEY, record).head.payload), SITE_PUBLIC)


def test_a_digest_names_what_was_said_whoever_signed_it() -> None:
    assert digest_of(seal(SITE_KEY, SAMPLE)) == digest_of(seal(STRANGERS_KEY, SAMPLE))


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\nzz\n", b"{}\n00\nmore", b"{}\n00", b"{}\n\xff\n"])
def test_what_is_no_two_lines_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"lines|unpack|hexadecimal|decode"):
        from_lines(data)


def test_a_unit_knows_its_samples() -> None:
    assert Unit(0, 0, 5, 12).samples == 7


def test_a_record_of_version_1_means_what_it_meant() -> None:
    """Written by the program of version 1, with its signature over the contributions too."""
    data = (FOLDER / "record_1.lines").read_bytes()
    record = open_record(from_lines(data), SITE_PUBLIC)
    assert to_lines(from_lines(data)) == data
    assert digest_of(from_lines(data)) == hashlib.sha256(data.split(b"\n")[0]).hexdigest()
    assert (record.index, record.step, record.loss, record.samples, record.contributors) == (1, 1, 7.5, 8, 2)
    assert [(span.first, span.stop, span.root[:2]) for span in record.spans] == [(0, 2, "ab"), (2, 5, "cd")]
    amina, teo = record.contributions
    assert (amina.included, amina.clipped) == ((ChunkRange(0, 5),), False)
    assert (teo.included, teo.clipped) == ((ChunkRange(0, 3),), True)
    assert (is_everywhere(amina, record), is_everywhere(teo, record)) == (True, False)


def test_other_contributions_than_those_under_the_root_are_refused() -> None:
    mine, theirs = (msgspec.structs.replace(sample(Contribution), samples=samples) for samples in (3, 4))
    entry = seal(SITE_KEY, rooted(msgspec.structs.replace(SAMPLE, contributions=(mine,))))
    for others in ((theirs,), (mine, theirs), ()):
        forged = Entry(
            entry.head, seal(SITE_KEY, rooted(msgspec.structs.replace(SAMPLE, contributions=others))).contributions
        )
        with pytest.raises(Problem, match="E218"):
            open_record(forged, SITE_PUBLIC)
