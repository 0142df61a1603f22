"""A commit record can be sealed and stored as two lines, and any change to it is detected."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import (
    Contribution,
    Entry,
    Record,
    Unit,
    digest_of,
    from_lines,
    open_record,
    seal,
    to_lines,
)
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.log.entries import SAMPLE, records, rooted
from tests.protocol.strategies import sample


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


def test_a_digest_names_what_was_said_whoever_signed_it() -> None:
    assert digest_of(seal(SITE_KEY, SAMPLE)) == digest_of(seal(STRANGERS_KEY, SAMPLE))


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\nzz\n", b"{}\n00\nmore", b"{}\n00", b"{}\n\xff\n"])
def test_what_is_no_two_lines_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"lines|unpack|hexadecimal|decode"):
        from_lines(data)


def test_a_unit_knows_its_samples() -> None:
    assert Unit(0, 0, 5, 12).samples == 7


def test_contributions_not_under_the_root_are_refused() -> None:
    mine, theirs = (msgspec.structs.replace(sample(Contribution), samples=samples) for samples in (3, 4))
    entry = seal(SITE_KEY, rooted(msgspec.structs.replace(SAMPLE, contributions=(mine,))))
    for others in ((theirs,), (mine, theirs), ()):
        forged = Entry(
            entry.head, seal(SITE_KEY, rooted(msgspec.structs.replace(SAMPLE, contributions=others))).contributions
        )
        with pytest.raises(Problem, match="E218"):
            open_record(forged, SITE_PUBLIC)
