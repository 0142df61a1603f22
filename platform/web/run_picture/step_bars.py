"""The step that is being made as one thin bar per machine. Pure."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from django.utils.translation import gettext_lazy

from web.run_picture.presence import AUXILIARY, RELAY, TRAINER, OnlinePeer

TINTS = 8  # classes tint-0 … tint-7 of the style sheet, each sanitize_fault in light and dark
WORDS = {
    "accumulate": gettext_lazy("gathering samples"),
    "offer": gettext_lazy("closing the step"),
    "reduce": gettext_lazy("averaging"),
    "commit": gettext_lazy("committing"),
}


class Bar(NamedTuple):
    """One machine. `share` is in percent of the target batch."""

    name: str
    tint: int
    state: str
    done: int
    share: float
    samples_per_s: float


class StepBars(NamedTuple):
    """All of them, and their sum. Relays and auxiliaries give no samples; they are counted apart."""

    bars: list[Bar]
    phase: str
    done: int
    target: int
    samples_per_s: float
    relays: int
    auxiliaries: int


def step_bars(peers: Sequence[OnlinePeer], *, target: int, phase: str) -> StepBars:
    """The trainers among `peers`, most samples first."""
    trainers = sorted((peer for peer in peers if peer.role == TRAINER), key=lambda peer: (-peer.done, peer.name))
    bars = [
        Bar(
            peer.name,
            tint_of(peer.name),
            peer.state,
            peer.done,
            min(100.0, 100 * peer.done / target),
            peer.samples_per_s,
        )
        for peer in trainers
    ]
    return StepBars(
        bars=bars,
        phase=str(WORDS.get(phase, phase)),
        done=sum(bar.done for bar in bars),
        target=target,
        samples_per_s=sum(bar.samples_per_s for bar in bars),
        relays=sum(peer.role == RELAY for peer in peers),
        auxiliaries=sum(peer.role == AUXILIARY for peer in peers),
    )


def tint_of(name: str) -> int:
    """A person's tint, the same on every page."""
    return hashlib.sha256(name.encode()).digest()[0] % TINTS
