"""Identifiers and bounded types used in messages. Run and machine ids are UUIDs, as 32 hexadecimal digits."""

from typing import Annotated, NewType

from msgspec import Meta

RunId = NewType("RunId", str)
PeerId = NewType("PeerId", str)
AccumulatorId = NewType("AccumulatorId", str)

ANY_RUN = RunId("*")  # the run in a relay's credential, because a relay serves every run of its site

Run = Annotated[RunId, Meta(pattern=r"^([0-9a-f]{32}|\*)$")]
Peer = Annotated[PeerId, Meta(pattern="^[0-9a-f]{32}$")]
Accumulator = Annotated[AccumulatorId, Meta(pattern="^[0-9a-f]{32}$")]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Nonce = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Small = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Medium = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Short = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=2000)]
