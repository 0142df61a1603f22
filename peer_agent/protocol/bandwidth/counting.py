"""Count the bytes that a receiver gets from each sender during an attempt (rule 31)."""

from collections.abc import Mapping

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import HEADER


class Arrived(Struct):
    """The bytes received from one sender, including headers, and the times of the first and last of them."""

    size: int
    first_at: float
    last_at: float


def count(arrived: dict[PeerId, Arrived], sender: PeerId, payload_bytes: int, now: float) -> None:
    """Add a chunk's bytes to its sender's count. `now`: monotonic seconds."""
    so_far = arrived.setdefault(sender, Arrived(0, now, now))
    so_far.size += HEADER.size + payload_bytes
    so_far.last_at = now


def arrivals_of(
    arrived: Mapping[PeerId, Arrived],
    planned_at: float,
    late: Mapping[PeerId, float] | None = None,
    held_s: Mapping[PeerId, float] | None = None,
) -> tuple[m.Arrival, ...]:
    """Return one report per sender of the bytes that arrived.

    `planned_at`: the time of the plan, in monotonic seconds. `late`: how late each sender's latest gradient chunk was,
    as a fraction of the plan's time. `held_s`: seconds for which the receiver paused reading from each sender.
    """
    return tuple(
        m.Arrival(
            sender,
            each.size,
            max(each.first_at - planned_at, 0.0),
            max(each.last_at - planned_at, 0.0),
            (late or {}).get(sender, 0.0),
            (held_s or {}).get(sender, 0.0),
        )
        for sender, each in sorted(arrived.items())
    )


def departures_of(full_s: Mapping[PeerId, float]) -> tuple[m.Departure, ...]:
    """Return, for each reducer, how many seconds its link was too full to take this peer's chunks."""
    return tuple(m.Departure(receiver, seconds) for receiver, seconds in sorted(full_s.items()))
