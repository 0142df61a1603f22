"""Base classes for messages, and bounds on all decoded numbers."""

from typing import Annotated

from msgspec import Meta, Struct

from peer_agent.protocol.identifiers import (
    Count,
    Digest,
    Medium,
    Run,
    Small,
)
from peer_agent.protocol.log.records import Unit

PROTOCOL = 4
MAX_HANDSHAKE = 8 * 1024  # bytes in a message before a link is open, so that unknown peers cannot fill our memory
SKETCH_BYTES = 1024  # 256 float32 numbers, little-endian
MAX_MESSAGE = 8 * 1024 * 1024  # bytes in a message or frame

Path = Annotated[tuple[Digest, ...], Meta(max_length=32)]  # hashes from a leaf up to a Merkle root
Units = Annotated[tuple[Unit, ...], Meta(max_length=100_000)]
StateDigest = Annotated[str, Meta(pattern="^([0-9a-f]{16})?$")]
Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Index = Annotated[int, Meta(ge=-1, le=2**53)]  # index of a log entry, or a step; -1 means none
# The bounds keep these numbers, and sums of a thousand of them, within float64.
Nats = Annotated[float, Meta(ge=0, le=1e15)]  # a summed loss
Sketch = Annotated[bytes, Meta(max_length=SKETCH_BYTES)]
Clock = Annotated[float, Meta(ge=0, le=1e12)]  # seconds of UTC
Seconds = Annotated[float, Meta(ge=0, le=1e6)]  # seconds since a plan arrived
Wait = Annotated[float, Meta(ge=-1, le=1e9)]  # seconds; below 0 means none


class Message(Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of every message: a `type` tag on the wire, and bounded fields. Unknown fields are refused."""


class Attempted(Message, frozen=True, kw_only=True):
    """Base of messages that follow a cut. Each names its attempt (rule 2); receivers ignore older attempts."""

    run: Run
    step: Count
    fence: Medium
    attempt: Small
