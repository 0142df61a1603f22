"""Every message survives encoding and decoding, and arbitrary bytes are harmless."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import Challenge, Leaves, Records
from peer_agent.protocol.wire import HEADER, Frame, Kind, Malformed, decode, encode, encode_frame
from tests.protocol.strategies import MESSAGE_TYPES, frames, messages, sample


@given(messages())
def test_every_message_comes_back(message: Any) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("cls", MESSAGE_TYPES)
def test_the_smallest_of_every_message_comes_back(cls: type) -> None:
    assert decode(encode(sample(cls))) == sample(cls)


@given(frames())
def test_every_frame_comes_back(frame: Frame) -> None:
    assert decode(encode_frame(frame)) == frame
    assert decode(memoryview(encode_frame(frame))) == frame


def test_a_frame_holds_its_chunk_without_a_copy() -> None:
    frame = Frame(Kind.GRADIENT, RunId("0" * 32), 1, 1, 1, 1, 1, 1, memoryview(bytearray(b"chunk")))
    data = encode_frame(frame)
    assert len(data) == HEADER.size + 5
    decoded = decode(data)
    assert isinstance(decoded, Frame)
    assert isinstance(decoded.payload, memoryview)
    assert decoded.payload.obj is data


@given(st.binary(max_size=300))
def test_bytes_never_raise(data: bytes) -> None:
    decode(data)


@given(st.sampled_from(tuple(Kind)), st.binary(max_size=300))
def test_bytes_behind_a_kind_never_raise(kind: Kind, data: bytes) -> None:
    decode(bytes([kind]) + data)


@given(messages(), st.data())
def test_a_damaged_message_never_raises(message: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    where = data.draw(st.integers(0, len(encoded) - 1))
    encoded[where] = data.draw(st.integers(0, 255))
    decode(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from([cls.__name__ for cls in MESSAGE_TYPES]), st.dictionaries(st.text(), anything))
def test_any_fields_under_a_known_name_never_raise(name: str, fields: dict[str, Any]) -> None:
    decode(bytes([Kind.MESSAGE]) + msgspec.msgpack.encode({"type": name, **fields}))


def test_an_abyss_is_malformed() -> None:
    """Decoding skips the fields before the type's name, however deeply nested they are."""
    abyss = b"\x82\xa1a" + b"\x91" * 100_000 + b"\xc0" + b"\xa4type\xa5Hello"
    assert isinstance(decode(bytes([Kind.MESSAGE]) + abyss), Malformed)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff" + bytes(100),
        bytes([Kind.GRADIENT]) + bytes(HEADER.size - 2),
        bytes([Kind.MESSAGE]),
        bytes([Kind.MESSAGE]) + b"\x80",
        bytes([Kind.MESSAGE]) + b"\xdd\xff\xff\xff\xff",  # an array of four thousand million elements
        bytes([Kind.MESSAGE]) + msgspec.msgpack.encode({"type": "\N{PILE OF POO}"}),
        bytes([Kind.MESSAGE]) + b"\x81\xa4type\xa2\xff\xff",
        encode(sample(Challenge)) + b"\x00",
    ],
    ids=range(10),
)
def test_what_is_no_message_is_malformed(data: bytes) -> None:
    assert isinstance(decode(data), Malformed)


@pytest.mark.parametrize("cls", MESSAGE_TYPES)
def test_an_unknown_field_is_malformed(cls: type) -> None:
    fields = msgspec.msgpack.decode(encode(sample(cls))[1:])
    data = bytes([Kind.MESSAGE]) + msgspec.msgpack.encode({**fields, "surprise": 1})
    assert isinstance(decode(data), Malformed)


def test_limits_hold_on_the_way_in() -> None:
    many = Records(run=RunId("0" * 32), first=0, last=0, records=sample(Records).records * 0)
    signed = msgspec.msgpack.decode(msgspec.msgpack.encode(many))
    signed["records"] = [{"payload": b"", "signature": bytes(64)}] * 257
    assert isinstance(decode(bytes([Kind.MESSAGE]) + msgspec.msgpack.encode(signed)), Malformed)
    long = sample(Leaves)
    assert isinstance(decode(encode(msgspec.structs.replace(long, leaves=bytes(4_000_001)))), Malformed)
