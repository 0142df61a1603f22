"""The step that is being made as one thin bar per machine. Pure."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext_lazy

from coordination.presence import AUXILIARY, RELAY, TRAINER, OnlinePeer
from web.run_picture.averaging import key_of

BARS = 20  # machines of which everybody is shown a bar; `web.pages.runs.swarm` has them all
OWN_BARS = 5  # machines of the reader's own that are shown below them
TINTS = 8  # classes tint-0 … tint-7 of the style sheet, each with a shade for light and one for dark
WORDS = {
    "accumulate": gettext_lazy("gathering samples"),
    "offer": gettext_lazy("closing the step"),
    "reduce": gettext_lazy("averaging"),
    "commit": gettext_lazy("committing"),
}


class StepSums(NamedTuple):
    """What all machines together have done. Relays and auxiliaries give no samples; they are counted apart."""

    phase: str
    done: int
    target: int
    samples_per_s: float
    relays: int
    auxiliaries: int


def step_sums(peers: Sequence[OnlinePeer], *, target: int, phase: str) -> StepSums:
    """Of the trainers among `peers`, and how many others there are."""
    trainers = [peer for peer in peers if peer.role == TRAINER]
    return StepSums(
        phase=str(WORDS.get(phase, phase)),
        done=sum(peer.done for peer in trainers),
        target=target,
        samples_per_s=sum(peer.samples_per_s for peer in trainers),
        relays=sum(peer.role == RELAY for peer in peers),
        auxiliaries=sum(peer.role == AUXILIARY for peer in peers),
    )


def bars_of(trainers: Iterable[OnlinePeer], *, target: int, most: int = BARS) -> list[dict[str, Any]]:
    """A bar for each of the first, by their people's names, under a key that says nothing of the machine.

    `share` is in percent of the target batch.
    """
    return [
        {
            "key": key_of(peer.peer),
            "name": peer.name,
            "tint": tint_of(peer.name),
            "state": peer.state,
            "done": peer.done,
            "share": round(min(100.0, 100 * peer.done / target), 1),
        }
        for peer in sorted(trainers, key=lambda peer: (peer.name, peer.peer))[:most]
    ]


def with_own(picture: dict[str, Any], own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The picture with bars of the reader's own below those that it has for everybody, as `frontend/src/place.ts` does.

    Short steps are shown by person: there are none below.
    """
    if not picture["target"]:
        return picture
    known = {bar["key"] for bar in picture["bars"]}
    below = [bar for bar in own if bar["key"] not in known]
    return {**picture, "bars": [*picture["bars"], *below][: picture["training"]]}


def machines_without_bar(picture: dict[str, Any]) -> int:
    """How many machines train that have no bar."""
    return picture["training"] - len(picture["bars"]) if picture["target"] else 0


def tint_of(name: str) -> int:
    """A person's tint, the same on every page."""
    return hashlib.sha256(name.encode()).digest()[0] % TINTS
