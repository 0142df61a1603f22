"""Between a trainer and a reducer, or whoever keeps the log; and with a relay that forwards."""

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
    """A reducer holds the plan and takes this slot's chunks; `received` lists those it has already (rule 19)."""

    slot: Small
    received: Annotated[tuple[int, ...], Meta(max_length=1_000_000)] = ()


class Leaves(Attempted, frozen=True, kw_only=True):
    """All leaves under a slot's root, 40 bytes each, before its first chunk."""

    slot: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class SpanLeaves(Attempted, frozen=True, kw_only=True):
    """The leaves of an averaged span, after its last chunk."""

    span: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class Probing(Message, frozen=True, kw_only=True):
    """The measure of this number begins: frames follow, and as many are asked for."""

    run: Run
    number: Count


class FetchSpan(Message, frozen=True, kw_only=True):
    """Send me this span of the log."""

    run: Run
    index: Count
    span: Small


class SpanMissing(Message, frozen=True, kw_only=True):
    """It is not held here."""

    run: Run
    index: Count
    span: Small


class FetchRecords(Message, frozen=True, kw_only=True):
    """Send me the records from this index on."""

    run: Run
    first: Count


class Records(Message, frozen=True, kw_only=True):
    """Entries in order. `last` is the newest index held here."""

    run: Run
    first: Count
    last: Annotated[int, Meta(ge=-1)]
    records: Annotated[tuple[Entry, ...], Meta(max_length=256)]


class Forward(Message, frozen=True, kw_only=True):
    """Connect this socket to a listener of the run: one that the coordinator tells of, and that you reach yourself."""

    run: Run
    to: Peer


class Forwarding(Message, frozen=True, kw_only=True):
    """It is connected: from now on frames carry the bytes of a link to it."""

    run: Run
    to: Peer
