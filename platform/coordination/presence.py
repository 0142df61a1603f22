"""Who is in a run now: written by its host, read by pages."""

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

CHANGES = 50  # of the number of trainers, that are kept
FRESH = timedelta(seconds=15)  # an older picture is of a host that is gone


class Seen(TypedDict):
    """One member as a page shows it. `done` is samples in its accumulator, `way` what `way_of` says."""

    peer: str
    name: str
    role: str
    state: str
    done: int
    samples_per_s: float
    way: str


class Step(TypedDict):
    """How far the current step is, in samples."""

    phase: str
    done: int
    target: int
    void_rounds: int


class Carried(msgspec.Struct, frozen=True):
    """What one direction of a link carries, in bytes per second. `is_floor`: so much was seen, it may be more."""

    bps: float
    is_floor: bool


class Link(msgspec.Struct, frozen=True):
    """Both directions of a member's link; None is not measured yet."""

    role: str
    up: Carried | None
    down: Carried | None


class Crowd(NamedTuple):
    """How many trainers there were from a moment on."""

    since: datetime
    trainers: int


class Present(NamedTuple):
    """What is known of a run now. `links` are as they were stored: see `links_in`.

    `crowd`: how the number of trainers changed lately, the newest last; where no host drives the run, nobody is here.
    """

    step: Step | None
    members: list[Seen]
    plan: Outline | None
    links: dict[str, Any]
    crowd: list[Crowd]


class Shown(NamedTuple):
    """All that a host writes for pages, as plain values."""

    step: Step
    members: list[Seen]
    plan: dict[str, Any] | None
    links: dict[str, Any]


def present(run: Run, *, with_links: bool = False) -> Present:
    """All of it, in one query; where no host drives the run, the last plan alone. Without links where nobody asks."""
    row = (Presence.objects.all() if with_links else Presence.objects.defer("links")).filter(run=run).first()
    if row is None:
        return Present(None, [], None, {}, [])
    crowd = _crowd_in(row)
    if row.at < timezone.now() - FRESH:
        return Present(None, [], _outline(row.plan), {}, crowd)
    step = Step(phase=row.phase, done=row.done, target=row.target, void_rounds=row.void_rounds)
    return Present(step, list(row.members), _outline(row.plan), row.links if with_links else {}, crowd)


class Before(NamedTuple):
    """What pages showed until now; `at` is when that was written, None where nothing was."""

    members: list[Seen]
    at: datetime | None


def online(run: Run) -> list[Seen]:
    """Members of the run, trainers first; empty where no host drives it."""
    return online_in([run]).get(run.pk, [])


def online_in(runs: Iterable[Run]) -> dict[UUID, list[Seen]]:
    """The same for many runs, in one query; those that no host drives are left out."""
    fresh = Presence.objects.filter(run__in=[run.pk for run in runs], at__gte=timezone.now() - FRESH)
    return {run_id: list(members) for run_id, members in fresh.values_list("run_id", "members")}


def current_step(run: Run) -> Step | None:
    """The step being made, None where no host drives the run."""
    narrow = Presence.objects.only("phase", "done", "target", "void_rounds")
    row = narrow.filter(run=run, at__gte=timezone.now() - FRESH).first()
    return Step(phase=row.phase, done=row.done, target=row.target, void_rounds=row.void_rounds) if row else None


def last_plan(run: Run) -> Outline | None:
    """The last plan that a host has made, whether or not one drives the run now."""
    return _outline(Presence.objects.filter(run=run).values_list("plan", flat=True).first())


def _outline(plan: Any) -> Outline | None:
    try:
        return msgspec.convert(plan, Outline | None)
    except msgspec.ValidationError:  # as another version of this site wrote it
        return None


def links(run: Run) -> dict[PeerId, Link]:
    """What the links of those who are here carry, as far as it is known: for each one's owner and the organizer."""
    fresh = Presence.objects.filter(run=run, at__gte=timezone.now() - FRESH)
    return links_in(fresh.values_list("links", flat=True).first() or {})


def links_in(stored: Mapping[str, Any]) -> dict[PeerId, Link]:
    """The same from what was stored."""
    return msgspec.convert(stored, dict[PeerId, Link])


def _crowd_in(row: Presence) -> list[Crowd]:
    gone = [[row.at.timestamp(), 0]] if row.at < timezone.now() - FRESH else []
    changes = _with([*row.crowd], *gone)
    return [Crowd(datetime.fromtimestamp(seconds, UTC), int(trainers)) for seconds, trainers in changes]


def _with(changes: list[list[float]], *newer: list[float]) -> list[list[float]]:
    """Changes of a number, those alone that change it; the newest `CHANGES`."""
    for seconds, trainers in newer:
        if not changes or changes[-1][1] != trainers:
            changes.append([seconds, trainers])
    return changes[-CHANGES:]


def forget_plans(person: str) -> None:
    """Last plans that name somebody who has left for good; of a run that goes on there is another one soon."""
    for row in Presence.objects.exclude(plan=None).only("pk", "plan").iterator():
        if msgspec.json.encode(person) in msgspec.json.encode(row.plan):
            Presence.objects.filter(pk=row.pk).update(plan=None)


def shown_of(state: RunState) -> Shown:
    """What pages show of a coordinator's state."""
    return Shown(*picture_of(state), msgspec.to_builtins(state.outline), msgspec.to_builtins(_links_of(state)))


def _links_of(state: RunState) -> dict[PeerId, Link]:
    def carried(peer: PeerId, way: Way) -> Carried | None:
        known = state.capacities.get((peer, way))
        return Carried(round(known.bps), known.is_floor) if known is not None else None

    return {
        peer: Link(member.role.value, carried(peer, "up"), carried(peer, "down"))
        for peer, member in state.members.items()
    }


def picture_of(state: RunState) -> tuple[Step, list[Seen]]:
    """Who is here, and how far the step is. For a moment after each commit everybody is one step behind."""
    direct = frozenset(p.peer for p in state.listening.values() if p.role is not Role.RELAY and state.may_reduce(p))
    members = sorted(state.members.values(), key=lambda p: (not p.trains, p.role, p.person, p.peer))
    seen = [
        Seen(
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
    done = sum(member["done"] for member in seen)
    step = Step(phase=state.phase.value, done=done, target=state.recipe.target_batch, void_rounds=state.void_rounds)
    return step, seen


def way_of(member: Member, direct: frozenset[PeerId]) -> str:
    """How gradients get from a member to those that average beside relays (`direct`): “direct”, “partly”, “relayed”.

    By its own word, as the plan has it; empty of relays, and of who has not said it.
    """
    if member.role is Role.RELAY or not (member.measures or member.peer in direct):
        return ""
    if member.peer in direct or (direct and direct <= member.reaches):
        return "direct"
    return "partly" if direct & member.reaches else "relayed"


@transaction.atomic
def show(run: Run, shown: Shown) -> Before:
    """Write who is there, for pages to read. A host that has made no plan yet leaves the last one of another."""
    plan = {"plan": shown.plan} if shown.plan is not None else {}
    now = timezone.now()
    here: list[float] = [round(now.timestamp(), 1), sum(each["role"] == Role.TRAINER for each in shown.members)]
    values = {**shown.step, "members": shown.members, "links": shown.links, **plan}
    new = {**values, "crowd": [here]}
    row, is_new = Presence.objects.select_for_update().get_or_create(run=run, defaults=new)
    if is_new:
        return Before([], None)
    before = Before(row.members, row.at)
    gone = [[round(row.at.timestamp(), 1), 0]] if row.at < now - FRESH else []
    for name, value in {**values, "crowd": _with(row.crowd, *gone, here)}.items():
        setattr(row, name, value)
    row.save()
    return before
