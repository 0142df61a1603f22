"""Measures of an idle link, as each of its two ends sees them: what it expects, and what came of it (rule 31).

The coordinator names two peers; each sends the other frames for a while, both ways at once, and counts what comes.
"""

from msgspec import Struct, field

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import HEADER, Frame

PROBE_S = 1.6  # of sending
LEAD_S = 0.5  # at the beginning, in which a connection finds its speed: not counted
LEAST_S = 0.25  # of what is counted
HALF_S = (PROBE_S - LEAD_S) / 2  # of it
EXPECTED_S = 6.0  # from the coordinator's word to the last frame
FRAME_BYTES = 32 * 1024  # of a frame's payload
MOST_BYTES = 256 * 1024 * 1024  # that an end sends
MOST_OPEN = 4  # measures that are expected at once
LAST = 1  # the slot of the last frame


class Expected(Struct):
    """One measure: of which link, until when, and what has come."""

    partner: PeerId
    until: float
    counts_from: float = 0.0
    size: int = 0
    half: tuple[int, float] = (0, 0.0)  # of it, bytes and seconds, before the second half


class Probes(Struct):
    """Those that are open, by number."""

    open: dict[int, Expected] = field(default_factory=dict)


def expect(probes: Probes, message: m.Probe, now: float) -> None:
    """The coordinator has named a link. `now` is monotonic seconds."""
    for number in [number for number, each in probes.open.items() if now >= each.until]:
        del probes.open[number]
    if len(probes.open) < MOST_OPEN:
        probes.open[message.number] = Expected(message.partner, now + EXPECTED_S)


def is_expected(probes: Probes, partner: PeerId, number: int, now: float) -> bool:
    """Whether this link is to be measured now: nobody else is sent anything."""
    expected = probes.open.get(number)
    return expected is not None and expected.partner == partner and now < expected.until


def frame_came(probes: Probes, partner: PeerId, frame: Frame, now: float) -> tuple[int, float] | None:
    """Count a frame; with the last one, how many bytes came in how many seconds, where that was long enough.

    Of two halves the slower one counts: a machine that was busy just before reads at once what had come meanwhile.
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
    """Of a measure in which nothing came for a while, the whole."""
    first_size, first_s = expected.half
    size, last_s = expected.size - first_size, seconds - first_s
    if min(first_s, last_s) < LEAST_S:
        return expected.size, seconds
    return min(((first_size, first_s), (size, last_s)), key=lambda half: half[0] / half[1])
