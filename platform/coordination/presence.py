"""The machines present in a run. The run's host writes them; pages and the API read them only through this module."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from coordination.models import Presence
from peer_agent.protocol.bandwidth.flows import Way
from peer_agent.protocol.coordinator.state import Member, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Outline
from runs.models import Run
from runs.states import HOSTED

TRAINER, AUXILIARY, RELAY = Role.TRAINER.value, Role.AUXILIARY.value, Role.RELAY.value
CHANGES = 50  # how many changes in the number of trainers are kept
FRESH = timedelta(seconds=15)  # an older record means that the run has no live host


class OnlinePeer(NamedTuple):
    """A connected peer. `name` is its owner's name, and `done` counts the samples it has processed in this step.

    `way` says how its gradients reach the reducers (see `way_of`).
    """

    peer: str
    name: str
    role: str
    state: str
    done: int
    samples_per_s: float
    way: str = ""


class Step(TypedDict):
    phase: str
    done: int
    target: int
    void_rounds: int


class Carried(msgspec.Struct, frozen=True):
    """The estimated speed of a link in one direction, in bytes per second. If `is_floor`, the link may be faster."""

    bps: float
    is_floor: bool


class Link(msgspec.Struct, frozen=True):
    """The speed of a member's link in both directions. None means that the direction has not been measured yet."""

    role: str
    up: Carried | None
    down: Carried | None


class Crowd(NamedTuple):
    since: datetime
    trainers: int


class Here(NamedTuple):
    """The current state of a run. `links` is as stored (see `links_in`). The latest change in `crowd` comes last."""

    peers: list[OnlinePeer]
    phase: str  # empty if no host is driving the run
    plan: Outline | None
    links: dict[str, Any]
    crowd: list[Crowd]


class Shown(NamedTuple):
    """Everything that a host writes for the pages, as plain values."""

    step: Step
    members: list[OnlinePeer]
    plan: dict[str, Any] | None
    links: dict[str, Any]


class Before(NamedTuple):
    """The members in the run's previous row. `at` is when a host wrote it, or None if there was none."""

    members: list[OnlinePeer]
    at: datetime | None


def here(run: Run, *, with_links: bool = False) -> Here:
    """Return the run's current state, using one query. Without a live host, only the last plan and `crowd` are set."""
    row = (Presence.objects.all() if with_links else Presence.objects.defer("links")).filter(run=run).first()
    if row is None:
        return Here([], "", None, {}, [])
    crowd, plan = _crowd_in(row), _outline(row.plan)
    if row.at < timezone.now() - FRESH or run.state not in HOSTED:
        return Here([], "", plan, {}, crowd)
    return Here(_peers_in(row.members), row.phase, plan, row.links if with_links else {}, crowd)


def online(run: Run) -> list[OnlinePeer]:
    return online_in([run]).get(run.pk, [])


def online_in(runs: Iterable[Run]) -> dict[UUID, list[OnlinePeer]]:
    """Return the connected peers of each run that has a host, keyed by run, using one query."""
    driven = [run.pk for run in runs if run.state in HOSTED]
    fresh = Presence.objects.filter(run__in=driven, at__gte=timezone.now() - FRESH)
    return {run_id: _peers_in(members) for run_id, members in fresh.values_list("run_id", "members")}


def crowds_in(runs: Iterable[Run]) -> dict[UUID, list[Crowd]]:
    """Return the recent changes in each run's number of trainers, keyed by run, using one query."""
    rows = Presence.objects.filter(run__in=[run.pk for run in runs]).only("run", "crowd", "at")
    return {row.run_id: _crowd_in(row) for row in rows}


def _peers_in(members: Iterable[Mapping[str, Any]]) -> list[OnlinePeer]:
    return [OnlinePeer(**member) for member in members]


def last_plan(run: Run) -> Outline | None:
    """Return the last plan that a host made, even if the run now has no host."""
    return _outline(Presence.objects.filter(run=run).values_list("plan", flat=True).first())


def _outline(plan: Any) -> Outline | None:
    try:
        return msgspec.convert(plan, Outline | None)
    except msgspec.ValidationError:  # another version of this site wrote the plan
        return None


def links(run: Run) -> dict[PeerId, Link]:
    """Return the measured links of all connected machines.

    The caller must show each link only to the machine's owner and the run's organizer.
    """
    fresh = Presence.objects.filter(run=run, run__state__in=HOSTED, at__gte=timezone.now() - FRESH)
    return links_in(fresh.values_list("links", flat=True).first() or {})


def links_in(stored: Mapping[str, Any]) -> dict[PeerId, Link]:
    return msgspec.convert(stored, dict[PeerId, Link])


def _crowd_in(row: Presence) -> list[Crowd]:
    gone = [[row.at.timestamp(), 0]] if row.at < timezone.now() - FRESH else []
    changes = _with([*row.crowd], *gone)
    return [Crowd(datetime.fromtimestamp(seconds, UTC), int(trainers)) for seconds, trainers in changes]


def _with(changes: list[list[float]], *newer: list[float]) -> list[list[float]]:
    """Append each `newer` entry whose number of trainers differs from that of the entry before it.

    Return the last `CHANGES` entries.
    """
    for seconds, trainers in newer:
        if not changes or changes[-1][1] != trainers:
            changes.append([seconds, trainers])
    return changes[-CHANGES:]


def forget_plans(person: str) -> None:
    """Delete stored plans that contain the name of a deleted account. The hosts of active runs soon write new ones."""
    for row in Presence.objects.exclude(plan=None).only("pk", "plan").iterator():
        if msgspec.json.encode(person) in msgspec.json.encode(row.plan):
            Presence.objects.filter(pk=row.pk).update(plan=None)


def shown_of(state: RunState) -> Shown:
    return Shown(*picture_of(state), msgspec.to_builtins(state.outline), msgspec.to_builtins(_links_of(state)))


def _links_of(state: RunState) -> dict[PeerId, Link]:
    def carried(peer: PeerId, way: Way) -> Carried | None:
        known = state.links.capacities.get((peer, way))
        return Carried(round(known.bps), known.is_floor) if known is not None else None

    return {
        peer: Link(member.role.value, carried(peer, "up"), carried(peer, "down"))
        for peer, member in state.members.items()
    }


def picture_of(state: RunState) -> tuple[Step, list[OnlinePeer]]:
    """Return the step's progress and the connected peers. A trainer that is only one step behind counts as ready."""
    direct = frozenset(p.peer for p in state.listening.values() if p.role is not Role.RELAY and state.may_reduce(p))
    members = sorted(state.members.values(), key=lambda p: (not p.trains, p.role, p.person, p.peer))
    seen = [
        OnlinePeer(
            peer=member.peer,
            name=member.person,
            role=member.role.value,
            state="syncing" if member.trains and member.step < max(state.step - 1, 0) else "ready",
            done=member.done_samples,
            samples_per_s=round(member.samples_per_s, 2),
            way=way_of(member, direct),
        )
        for member in members
    ]
    done = sum(member.done for member in seen)
    step = Step(phase=state.phase.value, done=done, target=state.recipe.target_batch, void_rounds=state.void_rounds)
    return step, seen


def way_of(member: Member, direct: frozenset[PeerId]) -> str:
    """Return how the member's gradients reach the listening members, whose ids are `direct`.

    “direct” means that the member reaches all of them, “partly” some, and “relayed” none. The answer relies on the
    member's own report. It is empty for a relay, and for a member that does not listen and has sent no report.
    """
    if member.role is Role.RELAY or not (member.measures or member.peer in direct):
        return ""
    if member.peer in direct or (direct and direct <= member.reaches):
        return "direct"
    return "partly" if direct & member.reaches else "relayed"


@transaction.atomic
def show(run: Run, shown: Shown) -> Before:
    """Write the run's row for pages. Return the previous row's members. If there is no new plan, keep the old one."""
    plan = {"plan": shown.plan} if shown.plan is not None else {}
    now = timezone.now()
    here: list[float] = [round(now.timestamp(), 1), sum(each.role == TRAINER for each in shown.members)]
    values = {**shown.step, "members": [each._asdict() for each in shown.members], "links": shown.links, **plan}
    new = {**values, "crowd": [here]}
    row, is_new = Presence.objects.select_for_update().get_or_create(run=run, defaults=new)
    if is_new:
        return Before([], None)
    before = Before(_peers_in(row.members), row.at)
    gone = [[round(row.at.timestamp(), 1), 0]] if row.at < now - FRESH else []
    for name, value in {**values, "crowd": _with(row.crowd, *gone, here)}.items():
        setattr(row, name, value)
    row.save()
    return before
