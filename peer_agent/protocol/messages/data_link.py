"""Messages between a trainer and a reducer or keeper of the log, and with a relay that forwards."""

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
    """A reducer has the plan and accepts this slot's chunks. `received` lists those it already has (rule 19)."""

    slot: Small
    received: Annotated[tuple[int, ...], Meta(max_length=1_000_000)] = ()


class Leaves(Attempted, frozen=True, kw_only=True):
    """All leaves under a slot's root, 40 bytes each, sent before its first chunk."""

    slot: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class SpanLeaves(Attempted, frozen=True, kw_only=True):
    """The leaves of an averaged span, sent after its last chunk."""

    span: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class Probing(Message, frozen=True, kw_only=True):
    """The probe of this number begins: frames follow, and the other end sends frames back."""

    run: Run
    number: Count


class FetchSpan(Message, frozen=True, kw_only=True):
    """A request for a span from the log."""

    run: Run
    index: Count
    span: Small


class SpanMissing(Message, frozen=True, kw_only=True):
    """The requested span is not held here."""

    run: Run
    index: Count
    span: Small


class FetchRecords(Message, frozen=True, kw_only=True):
    """A request for the records from this index on."""

    run: Run
    first: Count


class Records(Message, frozen=True, kw_only=True):
    """Log entries in order. `last` is the newest index held here."""

    run: Run
    first: Count
    last: Annotated[int, Meta(ge=-1)]
    records: Annotated[tuple[Entry, ...], Meta(max_length=256)]


class Forward(Message, frozen=True, kw_only=True):
    """A request to connect this socket to a listener of the run that the coordinator names and the relay reaches."""

    run: Run
    to: Peer


class Forwarding(Message, frozen=True, kw_only=True):
    """The listener is connected: from now on frames carry the bytes of a link to it."""

    run: Run
    to: Peer
