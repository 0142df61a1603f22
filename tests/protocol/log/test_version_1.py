"""Records of version 1 mean today what they meant."""

import hashlib

import msgspec
import pytest
from msgspec.structs import replace

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.reading import open_record
from peer_agent.protocol.log.records import ChunkRange, Included, digest_of, from_lines, is_everywhere, to_lines
from peer_agent.protocol.log.version_1 import Contribution1, Record1, SpanEntry1, converted
from tests.golden import FOLDER
from tests.protocol.identities import SITE_PUBLIC
from tests.protocol.strategies import sample

SPANS = (
    replace(
        sample(SpanEntry1), span=1, first=4, stop=8, attempt=2, included=(Included(4, 6, (0,)), Included(6, 8, (0, 1)))
    ),
    replace(sample(SpanEntry1), first=0, stop=4, included=(Included(0, 2, (0, 1)), Included(2, 4, (0,)))),
)
PARTS = (replace(sample(Contribution1), peer="a" * 32), replace(sample(Contribution1), peer="b" * 32, slot=1))
OLD = replace(sample(Record1), index=7, step=6, kind="rollback", exact=True, spans=SPANS, contributions=PARTS)


def payload(record: Record1 = OLD) -> bytes:
    return msgspec.json.encode(record)


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


def test_who_was_included_beside_each_span_has_ranges_in_the_order_of_chunks() -> None:
    everywhere, partly = converted(payload()).contributions
    assert everywhere.included == (ChunkRange(0, 8),)
    assert partly.included == (ChunkRange(0, 2), ChunkRange(6, 8))


def test_whoever_was_named_as_clipped_is() -> None:
    record = converted(payload(replace(OLD, clipped=("b" * 32,))))
    assert [part.clipped for part in record.contributions] == [False, True]


def test_everything_else_is_as_it_was() -> None:
    record = converted(payload())
    moved = {"spans", "contributions", "clipped"}
    for name in set(Record1.__struct_fields__) - moved:
        assert getattr(record, name) == getattr(OLD, name), name
    for span, before in zip(record.spans, OLD.spans, strict=True):
        assert all(getattr(span, name) == getattr(before, name) for name in span.__struct_fields__)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"run":"\xff"}', payload()[:-1] + b',"more":1}'])
def test_what_is_no_record_of_version_1_is_refused(data: bytes) -> None:
    with pytest.raises(Problem, match="E218"):
        converted(data)
