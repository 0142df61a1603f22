"""A run's page, for everyone who may see it. The organizer's page is in `manage`."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from accounts import machine_control
from coordination import presence
from coordination.presence import TRAINER, OnlinePeer
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.plan import Outline
from peer_agent.protocol.recipe import Recipe
from runs.access import MANAGING, access_run, may_manage, person_of, role_of
from runs.datasets.services import source_lines
from runs.ledger.standings import Period
from runs.lifecycle import joining
from runs.lifecycle.repair import Repair, repair_of
from runs.lifecycle.services import failed_here
from runs.models import Publication, Release, Run, Snapshot
from runs.releases.card_facts import how_checked
from runs.releases.making import better_snapshot, is_stale
from runs.selectors import RunPicture
from runs.snapshots.recheck import outcome_of, recheck_of
from runs.states import LIVE, MOVING
from web import qr, strokes
from web.agent_package import install_lines, is_near
from web.http import rate_limits
from web.http.requester import address_of, run_or_404, site_of
from web.pages.accounts.machines import PAUSE_CHOICES
from web.pages.runs.forms.organizer import RequestForm
from web.pages.runs.forms.recipe import estimate_of
from web.pages.runs.trials import trial_facts
from web.pages.site.showcase import Line, first_line
from web.run_picture import curves
from web.run_picture.averaging import limiting
from web.run_picture.counts import with_number
from web.run_picture.curves import LOSS, NARROW, WIDE, chart_of, loss_chart
from web.run_picture.image import CARD as PREVIEW
from web.run_picture.loading import seen_of, troubles_of
from web.run_picture.own import (
    Own,
    first_credit_facts,
    links_shown,
    only_machine,
    own_bars,
    own_machine_words,
    own_words,
)
from web.run_picture.picture import PERIODS, Picture, Seen, board_facts, picture_of, standing_of
from web.run_picture.status_sentence import PERPLEXITY
from web.words import in_bytes, loss_unit_of_page

REFRESH_S = 5
CARD = "README.md"


@require_safe
def run_page(request: HttpRequest, slug: str) -> HttpResponse:
    return shown_page(request, run_or_404(access_run, request, slug))


def shown_page(
    request: HttpRequest, run: Run, *, fault: Fault | None = None, form: RequestForm | None = None
) -> HttpResponse:
    """Show the run's page. If a request to join has failed, show the error too."""
    facts, person = run_facts(request, run), person_of(request.user)
    facts |= {"fault": fault, "standing": joining.standing_of(run, person), "request_form": form or RequestForm()}
    if facts["role"] is not None:
        facts["troubles"] = troubles_of(facts["seen"])
        facts["asked"] = joining.waiting_in(run).count() if joining.takes_requests(run) else 0
    elif person is not None:
        facts["offered"] = run.roles.select_related("invited_by").filter(person=person, accepted_at=None).first()
    return render(request, "web/runs/run.html", facts, status=409 if fault else 400 if form else 200)


@require_safe
@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
def own_parts(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the parts of a run's page that only its reader may see: their machines, place and connections."""
    run = run_or_404(access_run, request, slug)
    here = presence.here(run, with_links=request.user.is_authenticated)
    own = Own(run, request.user)
    facts = {
        "run": run,
        "picture": {"release": getattr(run, "release", None)},
        "address": request.build_absolute_uri(f"/runs/{run.slug}/"),
        "standing": joining.standing_of(run, person_of(request.user)),
        "request_form": RequestForm(),
        **own_facts(run, own, here.peers),
        **place_facts(run, own, here.links, here.plan, ()),
    }
    answer = render(request, "web/runs/own.html", facts)
    answer.headers["Cache-Control"] = "private, no-store"
    return answer


def own_facts(run: Run, own: Own, peers: Sequence[OnlinePeer]) -> dict[str, Any]:
    person = person_of(own.viewer)
    paused = machine_control.paused_in(run.run_id, person) if person is not None else None
    paused_machine, control = paused or (None, None)
    return {
        "own_bars": own_bars(own, peers),
        "mine": own_machine_words(own, peers),
        "first": first_credit_facts(own),
        "only_machine": only_machine(own, peers),
        "pauses": PAUSE_CHOICES,
        "paused_machine": paused_machine,
        "paused_until": control.paused_until if control is not None else None,
        "can_join": run.state in LIVE,
        "joins_early": run.state == Run.State.PAUSED and not run.head.step,  # machines wait for the first step
    }


def place_facts(
    run: Run, own: Own, links: Mapping[str, Any], outline: Outline | None, shown: Collection[str]
) -> dict[str, Any]:
    """Return the reader's place in the ranking, and the machines' connections that they may see.

    The place is left out if the reader is among the names that the page already shows (`shown`).
    """
    limits = limiting(outline) if outline else ()
    return {
        "you": own_words(own, shown),
        "links": links_shown(run, own.viewer, links, sees_all=may_manage(run, own.viewer), limiting=limits),
    }


def run_facts(request: HttpRequest, run: Run) -> dict[str, Any]:
    seen, own = seen_of(run, with_links=request.user.is_authenticated), Own(run, request.user)
    facts = head_facts(request, run, seen, own)
    picture, live = seen.run, facts["live"]
    unit = loss_unit_of_page(run.parsed_recipe)[0]
    role = role_of(run, request.user)
    manages = role in MANAGING
    repairs = repair_facts(run) if manages else {}
    as_perplexity = request.GET.get("as") == PERPLEXITY and bool(live["perplexity"])
    drawn: dict[str, Any] = {"unit": unit, "as_perplexity": as_perplexity}
    return {
        **facts,
        "recipe": run.parsed_recipe,
        **place_facts(run, own, seen.links, seen.outline, [line.name for line in picture.leaderboard]),
        **stage_facts(picture, live),
        "has_own": request.user.is_authenticated,
        **_chart_facts(request, live, picture, drawn),
        "as_perplexity": as_perplexity,
        **board_facts(live, _board_in(request)),
        "refresh_s": REFRESH_S if run.state in MOVING or repairs.get("recheck") else None,
        "role": role,
        "manages": manages,
        **repairs,
        "preview": PREVIEW,
        "site": site_of(request),
        **home_facts(request, run, own, picture),
        **trial_facts(run, picture.release),
        "install": (install := install_lines(request)),
        "is_new": install is not None and not request.user.is_authenticated,
        "is_near": is_near(request),
        "needs": needs_words(run.parsed_recipe),
        "room": room_words(run, seen.peers),
        "qr": qr.drawn(facts["address"], is_framed=True) if live["start"] else "",
    }


def repair_facts(run: Run) -> dict[str, Any]:
    """Return what a manager sees of a run whose loss rose: the recheck under way, its outcome, or the repair."""
    if not run.is_halted:
        return {}
    outcome, repair = outcome_of(run), repair_of(run)
    if outcome is None:
        return {"recheck": recheck_of(run)}
    if repair is None:
        return {"outcome": outcome}
    names = sorted({machine.person.username for machine in repair.machines})
    said = {
        "names": ", ".join(names),
        "people": repair.people,
        "target": repair.target,
        "action": _repair_words(repair),
    }
    return {"outcome": outcome, "repair": said}


def _repair_words(repair: Repair) -> str:
    removed, step = len(repair.people), f"{repair.target.step:,}" if repair.target else ""
    facts = {"name": repair.people[0].username if removed == 1 else "", "people": f"{removed:,}", "step": step}
    if not removed:
        return _("Roll back to step %(step)s") % facts if step else _("Take back the credit")
    if removed == 1:
        return (_("Remove %(name)s and roll back to step %(step)s") if step else _("Remove %(name)s")) % facts
    return (
        _("Remove %(people)s people and roll back to step %(step)s") if step else _("Remove %(people)s people")
    ) % facts


def stage_facts(picture: RunPicture, live: Picture) -> dict[str, Any]:
    """Return what the run's page shows at its stage only.

    This is a drawing of the whole run while it is waiting or once it is finished, a text that the released model wrote,
    or the reason for a failure.
    """
    stage, release = live["stage"], picture.release
    return {
        "hero": whole_run(picture, live) if stage in ("waiting", "finished") or not live["step"] else "",
        "best": _best_line(release, picture.written) if release and stage == "finished" else None,
        "failed": release.fault if release and stage == "failed" else "",
    }


def _best_line(release: Release, snapshots: Sequence[Snapshot]) -> Line | None:
    """Return the beginning of a text that the released model wrote.

    This is its continuation of a prompt if its snapshot has one, otherwise the sample on the model card.
    """
    written: list[list[str]] = next((each.written for each in snapshots if each.step == release.step), [])
    return first_line([*written, ["", release.sample]])


def whole_run(picture: RunPicture, live: Picture) -> str:
    given = [(line["tint"], line["samples"]) for line in live["leaderboard"]]
    rest = picture.samples - sum(samples for _, samples in given)
    points = [(point.step, point.loss) for point in picture.points if math.isfinite(point.loss)]
    state = "waiting" if live["stage"] == "paused" else live["stage"]
    parts, ready = [*given, ("rest", max(0, rest))], [chip["tint"] for chip in live["chips"]]
    can_join = live["is_joinable"]
    return strokes.hero(
        points, live["target_steps"], parts, live["summary"], state=state, ready=ready, can_join=can_join
    )


def _board_in(request: HttpRequest) -> str:
    asked = request.GET.get("board", "")
    return asked if asked in PERIODS else str(Period.ALL)


def _chart_facts(request: HttpRequest, live: Picture, picture: RunPicture, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return the requested chart in two sizes, as safe HTML. A chart contains only numbers and fixed words."""
    summaries = {each["key"]: each["summary"] for each in live["charts"]}
    chart = request.GET.get("chart", LOSS)
    if chart in summaries:
        sizes = (chart_of(picture.points, chart, frame) for frame in (curves.WIDE_FURTHER, curves.NARROW_FURTHER))
    else:
        chart, curve = LOSS, (picture.points, picture.dataset.unigram_entropy)
        sizes = (loss_chart(*curve, frame, picture.heldout, **drawn) for frame in (WIDE, NARROW))
    wide, narrow = map(mark_safe, sizes)
    return {
        "chart": chart,
        "chart_wide": wide,
        "chart_narrow": narrow,
    }


def head_facts(request: HttpRequest, run: Run, seen: Seen, own: Own) -> dict[str, Any]:
    """Return the template's values for the run page and the manage page: the head, the data and the picture."""
    live = picture_of(seen)
    return {
        "run": run,
        "seen": seen,
        "picture": seen.run,
        "sources": source_lines(run),
        "failed_here": failed_here(seen.run.dataset),
        "live": live,
        "live_standing": standing_of(live),
        **own_facts(run, own, seen.peers),
        "address": request.build_absolute_uri(f"/runs/{run.slug}/"),
    }


def needs_words(recipe: Recipe) -> str:
    """Return a sentence about the memory and traffic that a machine needs, for people who consider joining."""
    takes = estimate_of(recipe)
    return _("You need about %(memory)s of memory, a %(snapshot)s first download and %(sent)s of upload per step.") % {
        "memory": in_bytes(takes.on_cpu.memory),
        "snapshot": in_bytes(takes.snapshot),
        "sent": in_bytes(takes.up),
    }


def room_words(run: Run, peers: Sequence[OnlinePeer]) -> str:
    """Return a sentence about whether another machine would get work in the run now."""
    if run.later_start() is not None:
        return _("A machine that joins now loads the model and waits for the start.")
    recipe, here = run.parsed_recipe, sum(peer.role == TRAINER for peer in peers)
    left = -(-recipe.target_batch // recipe.micro_batch) - here
    if run.state == Run.State.PAUSED:
        return _("The run is paused; machines that join wait until it resumes.")
    if left <= 0:
        return _("All of a step's work is assigned right now; another machine would often be idle.")
    return with_number(
        ngettext("Room for %(number)s more machine.", "Room for %(number)s more machines.", left),
        left,
    )


def home_facts(request: HttpRequest, run: Run, own: Own, picture: RunPicture) -> dict[str, Any]:
    """Return the facts for downloading the model."""
    publication = getattr(run, "publication", None)
    published = publication if publication is not None and publication.url and not publication.private else None
    return {
        "published": published,
        "load_lines": load_lines(run, published),
        "fetch_line": fetch_line(request, run),
        "volunteers": _volunteers(run, picture, own),
        "may_be_named": own.samples is not None,
        "is_named": own.is_named,
        "card": CARD,
        **release_choice(run),
        "own": own.share(picture.samples),
    }


def _volunteers(run: Run, picture: RunPicture, own: Own) -> int:
    """Return how many people besides the organizer trained a released model."""
    if picture.release is None:
        return picture.people
    is_among = any(line.name == run.organizer.username for line in picture.leaderboard)
    if own.viewer == run.organizer:
        is_among = bool(own.samples)
    elif not is_among and len(picture.leaderboard) < picture.people:
        is_among = run.totals.filter(person=run.organizer_id, samples__gt=0).exists()
    return picture.people - is_among


def release_choice(run: Run) -> dict[str, Any]:
    """Return text on how the release was checked, and whether its files are being remade.

    Also return the snapshot that could be released instead: the best one, or the last one if the best is already
    released.
    """
    release = getattr(run, "release", None)
    if release is None or release.state != Release.State.READY:
        return {"checked": "", "better": None, "last": None, "is_remade": False}
    better = better_snapshot(run)
    is_best = better is not None and better.index == release.index
    return {
        "checked": how_checked(),
        "better": None if is_best else better,
        "last": run.snapshots.order_by("-index").first() if is_best else None,
        "is_remade": is_stale(release),
    }


def load_lines(run: Run, published: Publication | None) -> str:
    """Return the lines of code that load the model: from the Hub if published, else from the unpacked archive."""
    where = published.repository if published else run.slug
    return run.parsed_recipe.usage(json.dumps(where))


def fetch_line(request: HttpRequest, run: Run) -> str:
    """Return a command that downloads the archive. After an interruption, the same command resumes the download."""
    address = request.build_absolute_uri(f"/api/v1/runs/{run.slug}/release/{run.slug}.zip")
    return f"curl -C - -O {address} && unzip {run.slug}.zip"
