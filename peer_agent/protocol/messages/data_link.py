"""Messages that a trainer exchanges with reducers, log keepers and forwarding relays."""

from typing import Annotated

from msgspec import Meta

from peer_agent.protocol.identifiers import (
    Count,
    Peer,
    Run,
    Small,
)
from peer_agent.protocol.log.records import Entry
from peer_agent.protocol.messages.base import Attempted, Message


class Open(Attempted, frozen=True, kw_only=True):
    """A reducer has the plan and will accept this slot's chunks. `received`: chunks that it already has (rule 19)."""

    slot: Small
    received: Annotated[tuple[int, ...], Meta(max_length=1_000_000)] = ()


class Leaves(Attempted, frozen=True, kw_only=True):
    """All leaves under a slot's Merkle root, 40 bytes each, sent before the slot's first chunk."""

    slot: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class SpanLeaves(Attempted, frozen=True, kw_only=True):
    """The Merkle leaves of an averaged span, sent after the span's last chunk."""

    span: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class Probing(Message, frozen=True, kw_only=True):
    """The start of the link probe with this number. Frames follow, and the other end sends frames in return."""

    run: Run
    number: Count


class FetchSpan(Message, frozen=True, kw_only=True):
    """A request for an averaged span of a log entry."""

    run: Run
    index: Count
    span: Small


class SpanMissing(Message, frozen=True, kw_only=True):
    """The answer to a FetchSpan from a peer that does not have the span."""

    run: Run
    index: Count
    span: Small


class FetchRecords(Message, frozen=True, kw_only=True):
    """A request for the log entries from index `first` onwards."""

    run: Run
    first: Count


class Records(Message, frozen=True, kw_only=True):
    """Log entries in order. `last` is the latest index that the sender has."""

    run: Run
    first: Count
    last: Annotated[int, Meta(ge=-1)]
    records: Annotated[tuple[Entry, ...], Meta(max_length=256)]


class Forward(Message, frozen=True, kw_only=True):
    """A request for a relay to connect this socket to the listener `to`, which must be on the coordinator's list."""

    run: Run
    to: Peer


class Forwarding(Message, frozen=True, kw_only=True):
    """A relay has connected the socket to the listener `to`. From now on, frames carry that link's bytes."""

    run: Run
    to: Peer
