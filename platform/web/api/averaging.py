"""The last plan of a run, for everybody who sees it; what machines' links carry, for their owners and its organizer."""

from typing import Any

from django.http import HttpRequest
from ninja import Router

from coordination.presence import Carried
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.plan import Participant
from runs.access import access_run, person_of
from web.api.identity import run_for, viewer_of
from web.api.schemas import ITEMS, FaultOut, LastPlan, Limit, LinkList, Offset
from web.run_picture import presence
from web.run_picture.averaging import names_of
from web.run_picture.own_links import BITS, MEGA, OwnLink, links_for

router = Router(tags=["runs"])
READING: dict[Any, Any] = dict.fromkeys((401, 403, 404, 422), FaultOut)


@router.get("runs/{slug:slug}/plan", response={200: LastPlan, **READING})
def plan(request: HttpRequest, slug: str) -> dict[str, Any]:
    """Who sent and who averaged in the last round, and what it waited for."""
    outline = presence.last_plan(run_for(request, slug))
    if outline is None:
        return {"plan": None}
    names = ("step", "planned_s", "took_s", "is_void", "other_senders", "other_averagers")
    averagers = [{**_participant(each.who), "part": each.part} for each in outline.averagers]
    limits = [
        {"kind": limit.kind, "machines": list(map(_participant, limit.who)), "part": limit.part}
        for limit in outline.bottlenecks
    ]
    lists = {"senders": list(map(_participant, outline.senders)), "averagers": averagers, "limits": limits}
    return {"plan": {**{name: getattr(outline, name) for name in names}, **lists}}


@router.get("runs/{slug:slug}/links", response={200: LinkList, **READING})
def links(request: HttpRequest, slug: str, cursor: Offset = 0, limit: Limit = ITEMS) -> dict[str, Any]:
    """What the links of one's machines in this run carry; to its organizer, those of all."""
    viewer = viewer_of(request)
    if person_of(viewer) is None:
        raise Problem.of("E215")
    found = links_for(access_run(slug=slug, viewer=viewer), viewer)
    items = [_link(each) for each in found[cursor : cursor + limit]]
    return {"items": items, "next": str(cursor + limit) if len(found) > cursor + limit else None}


def _participant(who: Participant) -> dict[str, Any]:
    person, machine = names_of(who)
    return {"person": person, "machine": machine, "role": who.role}


def _link(own: OwnLink) -> dict[str, Any]:
    ends = {"up": _carried(own.link.up), "down": _carried(own.link.down)}
    return {"person": own.person, "machine": own.machine, "role": own.link.role, **ends}


def _carried(carried: Carried | None) -> dict[str, Any] | None:
    if carried is None:
        return None
    return {"megabits_per_s": BITS * carried.bps / MEGA, "is_floor": carried.is_floor}
