"""A plan as shown on pages: which peers send and average, how long the round takes, and what limits it."""

from collections.abc import Callable, Container, Iterable, Sequence

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import PlanHead, PlannedSpan
from peer_agent.protocol.plan.program import Kind
from peer_agent.protocol.plan.solve import Limit

MOST_NAMED = 8  # lines for senders and for averagers, including the one that sums up the rest
OF_ONE = frozenset({Kind.UP, Kind.DOWN})  # limits on one peer's upload or download, shown only if measured


class Participant(Struct, frozen=True, order=True):
    """A machine in the round, with the names shown on pages."""

    person: str
    machine: str
    peer: PeerId
    role: str


class Averager(Struct, frozen=True):
    """A reducer, and the fraction of the vector that it averages (0 to 1)."""

    who: Participant
    part: float


class Bottleneck(Struct, frozen=True):
    """A limit that determines how long the round takes. `who`: the peers with this limit.

    For a pair of peers, the sender comes first. For a household, `who` is empty.
    """

    kind: Kind
    who: tuple[Participant, ...]
    part: float  # this limit's fraction of the time that removing all limits would save


class Outline(Struct, kw_only=True):
    """A summary of a run's last plan. Times are in seconds. `took_s`, `is_void`: set once the round has ended."""

    step: int  # the step that the round produces
    planned_s: float  # 0 if no link's speed is known
    senders: tuple[Participant, ...]
    other_senders: int
    averagers: tuple[Averager, ...]
    other_averagers: int
    other_part: float
    bottlenecks: tuple[Bottleneck, ...]
    began_at: float  # when the round's first attempt began, by the coordinator's clock
    took_s: float | None = None
    is_void: bool = False


def outline_of(
    plan: PlanHead,
    contributors: Iterable[PeerId],
    limits: Sequence[Limit],
    *,
    named: Callable[[PeerId], Participant],
    measured: Container[tuple[PeerId, str]],
    began_at: float,
) -> Outline:
    """Return a plan's outline for pages. `measured`: peers and directions (`up`, `down`) with an estimated speed."""
    bottlenecks = tuple(
        Bottleneck(limit.kind, tuple(map(named, _told(limit))), limit.part)
        for limit in limits
        if limit.kind not in OF_ONE or (limit.peers[0], limit.kind.value) in measured
    )
    limiting = {who.peer for bottleneck in bottlenecks for who in bottleneck.who}
    # Bottlenecks first, then by name, so that every round shows the same peers.
    senders = sorted(map(named, contributors), key=lambda who: (who.peer not in limiting, who))
    averagers = [Averager(named(peer), part) for peer, part in parts_of(plan.spans).items()]
    averagers.sort(key=lambda each: (-round(each.part, 2), each.who))
    count = _count(len(averagers))
    return Outline(
        step=plan.step + 1,
        planned_s=plan.duration_s,
        senders=tuple(sorted(senders[: _count(len(senders))])),
        other_senders=len(senders) - _count(len(senders)),
        averagers=tuple(averagers[:count]),
        other_averagers=len(averagers) - count,
        other_part=sum(each.part for each in averagers[count:]),
        bottlenecks=bottlenecks,
        began_at=began_at,
    )


def parts_of(spans: Iterable[PlannedSpan]) -> dict[PeerId, float]:
    """Return the fraction of the vector that each reducer averages, including spans kept from earlier attempts."""
    chunks: dict[PeerId, int] = {}
    for span in spans:
        chunks[span.reducer] = chunks.get(span.reducer, 0) + span.stop - span.first
    whole = sum(chunks.values())
    return {peer: count / whole for peer, count in chunks.items() if count}


def _told(limit: Limit) -> tuple[PeerId, ...]:
    """Return the peers that pages may name for a limit.

    No peer is named for a household, because it is private which peers share an address.
    """
    return () if limit.kind is Kind.HOUSEHOLD else limit.peers


def _count(length: int) -> int:
    """Return how many of `length` peers to name. If not all fit, leave one line for the rest."""
    return length if length <= MOST_NAMED else MOST_NAMED - 1
