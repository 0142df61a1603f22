"""Bytes of an attempt as they come, by who sent them: counted by whoever receives (rule 31)."""

from collections.abc import Mapping

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import HEADER


class Arrived(Struct):
    """What has come of one sender: bytes with their headers, and when the first and the last of them came."""

    size: int
    first_at: float
    last_at: float


def count(arrived: dict[PeerId, Arrived], sender: PeerId, payload_bytes: int, now: float) -> None:
    """One more chunk. `now` is monotonic seconds."""
    so_far = arrived.setdefault(sender, Arrived(0, now, now))
    so_far.size += HEADER.size + payload_bytes
    so_far.last_at = now


def arrivals_of(
    arrived: Mapping[PeerId, Arrived],
    planned_at: float,
    late: Mapping[PeerId, float] | None = None,
    held_s: Mapping[PeerId, float] | None = None,
) -> tuple[m.Arrival, ...]:
    """The same as it is told: by id, in seconds since the plan came. `late`: in parts of the plan's time.

    `held_s`: in which nothing was read of it.
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
    """How our chunks went to each reducer, by id. `full_s`: seconds in which the way there took no more of them."""
    return tuple(m.Departure(receiver, seconds) for receiver, seconds in sorted(full_s.items()))
