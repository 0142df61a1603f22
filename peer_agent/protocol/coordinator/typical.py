"""Typical values over people, so that a person with many machines counts only once."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from msgspec import UNSET

from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.log.records import Record

GROWTH = 2.0  # times the typical norm of the updates before; an update's typical norm counts as no more


def typical(persons: Iterable[str], values: Iterable[float]) -> float:
    """Return the median, over people, of each person's own median."""
    own = defaultdict[str, list[float]](list)
    for person, value in zip(persons, values, strict=True):
        own[person].append(value)
    return median(each[0] if len(each) == 1 else median(each) for each in own.values())  # most people have one value


def remember_norm(state: RunState, record: Record) -> None:
    """Keep the typical norm of an update's contributions, at most twice that of the updates before it."""
    parts = [(part.person, part.evidence.norm) for part in record.contributions if part.evidence is not UNSET]
    norm = typical(*zip(*parts, strict=True)) if parts else 0.0
    if norm:
        state.norms.append(min(norm, GROWTH * median(state.norms)) if state.norms else norm)
