"""Who is in a run now, as its host shows it. Pages and API ask here and nowhere else."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from coordination import presence
from coordination.presence import Crowd, Link
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Outline
from runs.models import Run
from runs.states import HOSTED

TRAINER, AUXILIARY, RELAY = "trainer", "auxiliary", "relay"


class OnlinePeer(NamedTuple):
    """One peer that is connected. `done` is in samples of the step that is being made; `name` is its person's.

    `way`: as `coordination.presence.way_of` has it.
    """

    peer: str
    name: str
    role: str
    state: str
    done: int
    samples_per_s: float
    way: str = ""


class Here(NamedTuple):
    """What a host shows of a run. `links` are for their owners and the organizer: see `own_links`."""

    peers: list[OnlinePeer]
    phase: str  # empty where nobody drives the run
    plan: Outline | None
    links: dict[str, Any]
    crowd: list[Crowd]  # how the number of machines that train changed lately, the newest last


def here(run: Run, *, with_links: bool = False) -> Here:
    """All that pages ask, in one query; a run that ended still shows its last plan."""
    found = presence.present(run, with_links=with_links)
    if run.state not in HOSTED:
        return Here([], "", found.plan, {}, found.crowd)
    peers = [OnlinePeer(**peer) for peer in found.members]
    return Here(peers, found.step["phase"] if found.step else "", found.plan, found.links, found.crowd)


def online(run: Run) -> list[OnlinePeer]:
    """Those connected to the run, in the order they are shown."""
    if run.state not in HOSTED:
        return []
    return [OnlinePeer(**peer) for peer in presence.online(run)]


def online_in(runs: Collection[Run]) -> dict[UUID, list[OnlinePeer]]:
    """Those connected to each of these runs: one query for all."""
    found = presence.online_in(run for run in runs if run.state in HOSTED)
    return {run: [OnlinePeer(**peer) for peer in peers] for run, peers in found.items()}


def numbers_online(runs: Collection[Run]) -> dict[UUID, int]:
    """How many are connected to each of these runs."""
    members = presence.online_in(run for run in runs if run.state in HOSTED)
    return {run.pk: len(members.get(run.pk, [])) for run in runs}


def last_plan(run: Run) -> Outline | None:
    """What the last plan was, as people see it. A run that ended still shows it."""
    return presence.last_plan(run)


def links(run: Run) -> dict[PeerId, Link]:
    """What the links of those who are here carry. Not for everybody: see `own_links`."""
    return presence.links(run) if run.state in HOSTED else {}


def links_in(stored: Mapping[str, Any]) -> dict[PeerId, Link]:
    """The same from what `here` has read."""
    return presence.links_in(stored)
