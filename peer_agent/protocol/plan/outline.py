"""A plan as people see it: who sends, who averages which part of the vector, how long that should take, and why.

Bounded, however many take part: a few are named on either side, the others are summed up.
"""

from collections.abc import Callable, Container, Iterable, Sequence

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import PlanHead, PlannedSpan
from peer_agent.protocol.plan.program import Kind
from peer_agent.protocol.plan.solve import Limit

MOST_NAMED = 8  # on either side, the line that sums up the others among them
OF_ONE = frozenset(
    {Kind.UP, Kind.DOWN}
)  # limits of one peer's direction: nothing is known of one that was not measured


class Participant(Struct, frozen=True, order=True):
    """A machine in the round, by the names that stand beside its work."""

    person: str
    machine: str
    peer: PeerId
    role: str


class Averager(Struct, frozen=True):
    """Who averages, and which part of the vector (0 to 1)."""

    who: Participant
    part: float


class Bottleneck(Struct, frozen=True):
    """What the round waits for. Of a pair the sender comes first; who shares a household is not told."""

    kind: Kind
    who: tuple[Participant, ...]
    part: float  # of what a round would be shorter by if all limits were wider


class Outline(Struct, kw_only=True):
    """The last plan of a run. Seconds; the last two fields are known once its round has ended."""

    step: int  # that it makes
    planned_s: float  # 0 where no link is known
    senders: tuple[Participant, ...]
    other_senders: int
    averagers: tuple[Averager, ...]
    other_averagers: int
    other_part: float
    bottlenecks: tuple[Bottleneck, ...]
    began_at: float  # the coordinator's clock, at the first attempt
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
    """What there is to say of a plan. `measured`: directions of links of which something is known."""
    bottlenecks = tuple(
        Bottleneck(limit.kind, tuple(map(named, _told(limit))), limit.part)
        for limit in limits
        if limit.kind not in OF_ONE or (limit.peers[0], limit.kind.value) in measured
    )
    limiting = {who.peer for bottleneck in bottlenecks for who in bottleneck.who}
    # Those that the round waits for come first, then by name: the same ones in every round.
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
    """Each reducer's part of the vector, those of earlier attempts that are kept among them."""
    chunks: dict[PeerId, int] = {}
    for span in spans:
        chunks[span.reducer] = chunks.get(span.reducer, 0) + span.stop - span.first
    whole = sum(chunks.values())
    return {peer: count / whole for peer, count in chunks.items() if count}


def _told(limit: Limit) -> tuple[PeerId, ...]:
    """Of whom a limit is, as far as others may know: who shares an address with whom is nobody else's business."""
    return () if limit.kind is Kind.HOUSEHOLD else limit.peers


def _count(length: int) -> int:
    """How many are named of so many: all, or one fewer than there are lines."""
    return length if length <= MOST_NAMED else MOST_NAMED - 1
