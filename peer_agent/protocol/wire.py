"""The encoding of link messages: a kind byte, then either a struct in MessagePack or a frame with a chunk."""

import struct
from enum import IntEnum

import msgspec
from msgspec import Struct

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import AnyMessage, Message


class Kind(IntEnum):
    """The first byte on the wire: MESSAGE, or the kind of frame."""

    MESSAGE = 1
    GRADIENT = 2  # contributor to reducer
    AVERAGE = 3  # reducer (or log keeper) to receiver
    PROBE = 4  # part of a bandwidth probe, in either direction; `step` is the probe's number
    FORWARDED = 5  # bytes of a link that the relay passes on in either direction but cannot read


HEADER = struct.Struct(">B16sQIHHIH")  # kind, run, step, fence, attempt, span, chunk, slot

PIECE_BYTES = 64 * 1024  # bytes of a forwarded link per frame
LOGGED = 0  # the fence of frames read from a log, whose step is a log index; claims' fences start at 1


class Frame(Struct, frozen=True, gc=False):
    """A chunk in transit. The header only says where the chunk belongs; it never carries a weight."""

    kind: Kind
    run: RunId
    step: int
    fence: int
    attempt: int
    span: int
    chunk: int
    slot: int
    payload: memoryview | bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and encode_frame(self) == encode_frame(other)

    __hash__ = None  # type: ignore[assignment]


class Malformed(Struct, frozen=True):
    """Received bytes that are not a valid message. `reason`: wording for our log and for the sender."""

    reason: str


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    return bytes([Kind.MESSAGE]) + _encoder.encode(message)


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame: a 39-byte header, then the encoded chunk."""
    header = HEADER.pack(
        frame.kind,
        bytes.fromhex(frame.run),
        frame.step,
        frame.fence,
        frame.attempt,
        frame.span,
        frame.chunk,
        frame.slot,
    )
    return b"".join((header, frame.payload))  # copies the chunk once, for any kind of buffer


def decode(data: bytes | memoryview) -> AnyMessage | Frame | Malformed:
    """Decode received bytes. Return `Malformed` for bad bytes; never raise."""
    if not data:
        return Malformed("empty")
    match data[0]:
        case Kind.MESSAGE:
            try:
                return _decoder.decode(memoryview(data)[1:])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                return Malformed(str(error)[:200])
        case Kind.GRADIENT | Kind.AVERAGE | Kind.PROBE | Kind.FORWARDED if len(data) >= HEADER.size:
            kind, run, step, fence, attempt, span, chunk, slot = HEADER.unpack_from(data)
            payload = memoryview(data)[HEADER.size :]
            return Frame(Kind(kind), RunId(run.hex()), step, fence, attempt, span, chunk, slot, payload)
    return Malformed(f"unknown kind {data[0]} or short header")
