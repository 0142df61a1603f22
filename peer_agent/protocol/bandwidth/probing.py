"""Measure an idle link between two peers, as the coordinator requests. One peer sends, then the other (rule 31)."""

from msgspec import Struct, field

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import HEADER, Frame

PROBE_S = 1.6  # seconds of sending
LEAD_S = 0.5  # initial seconds, not counted because the connection is still speeding up
LEAST_S = 0.25  # minimum seconds of counted time
HALF_S = (PROBE_S - LEAD_S) / 2
EXPECTED_S = 6.0  # seconds from the coordinator's message to the last frame
FRAME_BYTES = 32 * 1024  # bytes in a frame's payload
MOST_BYTES = 256 * 1024 * 1024  # maximum number of bytes sent by one end
PROBE_BPS = MOST_BYTES / PROBE_S  # maximum bytes per second sent by one end
MOST_OPEN = 4  # maximum number of probes expected at once
LAST = 1  # the slot number of the last frame


class Expected(Struct):
    """A probe that this peer expects: the peer at the other end, the deadline, and the bytes received so far."""

    partner: PeerId
    until: float
    counts_from: float = 0.0
    size: int = 0
    half: tuple[int, float] = (0, 0.0)  # bytes and seconds of the first half


class Probes(Struct):
    """The probes that this peer expects now, by number."""

    open: dict[int, Expected] = field(default_factory=dict)


def expect(probes: Probes, message: m.Probe, now: float) -> None:
    """Register a probe announced by the coordinator. `now` is monotonic seconds."""
    for number in [number for number, each in probes.open.items() if now >= each.until]:
        del probes.open[number]
    if len(probes.open) < MOST_OPEN:
        probes.open[message.number] = Expected(message.partner, now + EXPECTED_S)


def is_expected(probes: Probes, partner: PeerId, number: int, now: float) -> bool:
    """Return True if this peer now expects probe `number` from `partner`. Frames of other probes are not counted."""
    expected = probes.open.get(number)
    return expected is not None and expected.partner == partner and now < expected.until


def frame_came(probes: Probes, partner: PeerId, frame: Frame, now: float) -> tuple[int, float] | None:
    """Count a probe frame. After the last one, return the measured bytes and seconds, unless the probe was too short.

    Only the slower half of a probe counts. A machine that was briefly busy reads all the waiting bytes at once, which
    would look too fast.
    """
    if not is_expected(probes, partner, frame.step, now):
        return None
    expected = probes.open[frame.step]
    expected.counts_from = expected.counts_from or now + LEAD_S
    seconds = now - expected.counts_from
    expected.size += HEADER.size + len(frame.payload) if seconds > 0 else 0
    if seconds <= HALF_S:
        expected.half = expected.size, max(seconds, 0.0)
    if frame.slot != LAST:
        return None
    del probes.open[frame.step]
    return _slower_half(expected, seconds) if seconds >= LEAST_S else None


def _slower_half(expected: Expected, seconds: float) -> tuple[int, float]:
    """Return the bytes and seconds of a probe's slower half, or of the whole probe if a half is too short."""
    first_size, first_s = expected.half
    size, last_s = expected.size - first_size, seconds - first_s
    if min(first_s, last_s) < LEAST_S:
        return expected.size, seconds
    return min(((first_size, first_s), (size, last_s)), key=lambda half: half[0] / half[1])
