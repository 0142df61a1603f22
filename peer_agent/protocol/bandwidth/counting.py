"""Count the bytes of an attempt by sender, on the receiver's side (rule 31)."""

from collections.abc import Mapping

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import HEADER


class Arrived(Struct):
    """Bytes received from one sender, headers included, with the times of the first and the last."""

    size: int
    first_at: float
    last_at: float


def count(arrived: dict[PeerId, Arrived], sender: PeerId, payload_bytes: int, now: float) -> None:
    """Add one chunk. `now` is monotonic seconds."""
    so_far = arrived.setdefault(sender, Arrived(0, now, now))
    so_far.size += HEADER.size + payload_bytes
    so_far.last_at = now


def arrivals_of(
    arrived: Mapping[PeerId, Arrived],
    planned_at: float,
    late: Mapping[PeerId, float] | None = None,
    held_s: Mapping[PeerId, float] | None = None,
) -> tuple[m.Arrival, ...]:
    """Return the counts as reported: by sender id, in seconds since the plan came.

    `late`: lateness in parts of the plan's time. `held_s`: seconds in which the receiver did not read from the sender.
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
    """Return, by reducer id, the seconds in which the link there was too full to take more of our chunks."""
    return tuple(m.Departure(receiver, seconds) for receiver, seconds in sorted(full_s.items()))
