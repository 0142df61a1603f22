"""API for reading runs. Anyone may read a public run; other runs are open only to people who may see them."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from ninja import Path, Router
from pydantic import Field

from coordination import presence
from coordination.presence import Carried
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.plan import Participant
from peer_agent.protocol.recipe import as_values
from runs import selectors
from runs.access import access_managed_run, access_run, person_of
from runs.datasets.services import SourceLine, source_lines
from runs.ledger import standings
from runs.ledger.totals import averaged_lines
from runs.models import Dataset, LedgerEntry, LogEntry, Release, Run, Snapshot
from runs.releases.card_facts import facts_at
from runs.storage import release_path
from web.api.identity import run_for, viewer_of
from web.api.schemas import (
    ITEMS,
    LARGEST_ROW,
    Cursor,
    FactsOut,
    FaultOut,
    LastPlan,
    LeaderboardPage,
    LedgerList,
    Limit,
    LinkList,
    Offset,
    RunDetailOut,
    RunList,
    Slug,
    SnapshotList,
    StepList,
    VerdictOut,
)
from web.http.files import send_stored
from web.run_picture.averaging import names_of
from web.run_picture.own import BITS, MEGA, OwnLink, links_for
from web.run_picture.status_sentence import overfitting_sentence

Row = TypeVar("Row")
CardStep = Annotated[int, Field(ge=0, le=LARGEST_ROW, description="The step; by default, the newest.")] | None
ReleaseFile = Annotated[str, Path(description="The file's name, such as `model.safetensors`.")]
router = Router(tags=["runs"])

READING: dict[Any, Any] = dict.fromkeys((401, 403, 404, 422), FaultOut)


@router.get("runs", response={200: RunList, 401: FaultOut, 422: FaultOut})
def runs(request: HttpRequest, cursor: Offset = 0, limit: Limit = ITEMS) -> dict[str, Any]:
    """List public runs and your own, newest first."""
    lines = selectors.run_lines(viewer_of(request), offset=cursor, limit=limit + 1)
    online = presence.online_in(line.run for line in lines)
    facts = [_run_facts(line.run, line.loss, len(online.get(line.run.pk, ()))) for line in lines[:limit]]
    return {"items": facts, "next": str(cursor + limit) if len(lines) > limit else None}


@router.get("runs/{slug:slug}", response={200: RunDetailOut, **READING})
def run(request: HttpRequest, slug: Slug) -> dict[str, Any]:
    """Return one run: its state, figures and recipe."""
    found = run_for(request, slug)
    facts = _run_facts(found, selectors.last_loss(found), len(presence.online(found)))
    progress = selectors.run_progress(found)
    told = {"heldout": _heldout_facts(progress), "passes": progress.passes, "warning": overfitting_sentence(progress)}
    release = Release.objects.filter(run=found, state=Release.State.READY).first()
    told["released_step"] = release.step if release is not None else None
    return facts | {"sources": [_source_facts(line) for line in source_lines(found)], **told}


@router.get("runs/{slug:slug}/steps", response={200: StepList, **READING})
def steps(request: HttpRequest, slug: Slug, cursor: Cursor = None, limit: Limit = ITEMS) -> dict[str, Any]:
    """List the committed steps of a run, oldest first."""
    found = run_for(request, slug)
    rows = selectors.steps(found, after=-1 if cursor is None else cursor)[: limit + 1]
    return _page(list(rows), limit, _step_facts, lambda row: row.index)


@router.get("runs/{slug:slug}/leaderboard", response={200: LeaderboardPage, **READING})
def leaderboard(request: HttpRequest, slug: Slug, cursor: Offset = 0, limit: Limit = ITEMS) -> dict[str, Any]:
    """List a run's contributors and their samples."""
    found = run_for(request, slug)
    lines = standings.leaderboard(found, offset=cursor, limit=limit + 1)
    unchecked = {"checked": None} if found.members_only else {}
    items = [line._asdict() | unchecked for line in lines[:limit]]
    averaged = [{"name": line.name, "bytes_averaged": line.bytes_averaged} for line in averaged_lines(found)]
    return {"items": items, "averaged": averaged, "next": str(cursor + limit) if len(lines) > limit else None}


@router.get("runs/{slug:slug}/ledger", response={200: LedgerList, **READING})
def ledger(request: HttpRequest, slug: Slug, cursor: Cursor = None, limit: Limit = ITEMS) -> dict[str, Any]:
    """List each machine's contributions to committed steps."""
    found = run_for(request, slug)
    rows = selectors.ledger_rows(found, after=cursor or 0)[: limit + 1]
    return _page(list(rows), limit, _ledger_facts, lambda row: row.pk)


@router.get("runs/{slug:slug}/snapshots", response={200: SnapshotList, **READING})
def snapshots(request: HttpRequest, slug: Slug, cursor: Cursor = None, limit: Limit = ITEMS) -> dict[str, Any]:
    """List the snapshots that can be loaded."""
    found = run_for(request, slug)
    rows = selectors.snapshots(found, after=-1 if cursor is None else cursor)[: limit + 1]
    best = selectors.best_snapshot(found)
    return _page(list(rows), limit, partial(_snapshot_facts, best), lambda row: row.index)


@router.get("runs/{slug:slug}/facts", response={200: FactsOut, **READING}, summary="Model card facts")
def facts(request: HttpRequest, slug: Slug, step: CardStep = None) -> dict[str, Any]:
    """Return the model card's facts as of a step (default: the latest). Only people who have agreed are named."""
    found = run_for(request, slug)
    newest = found.head.step
    known: dict[str, Any] = msgspec.to_builtins(facts_at(found, newest if step is None else min(step, newest)))
    return known


@router.get(
    "runs/{slug:slug}/verdict", response={200: VerdictOut, **READING}, summary="What was understood of the data"
)
def verdict(request: HttpRequest, slug: Slug) -> dict[str, Any]:
    """Return how the run's data was interpreted. Only for the organizer and co-organizers."""
    dataset = access_managed_run(slug=slug, viewer=viewer_of(request)).dataset
    is_ready = dataset.state == Dataset.State.READY
    return {"state": dataset.state, "mark": dataset.mark, "verdict": dataset.verdict if is_ready else None}


@router.get("runs/{slug:slug}/release/{name}", response={200: None, 206: None, 302: None, 416: None, **READING})
@router.api_operation(["HEAD"], "runs/{slug:slug}/release/{name}", include_in_schema=False)
def release_file(request: HttpRequest, slug: Slug, name: ReleaseFile) -> HttpResponseBase:
    """Download one file of the release. Ranges are supported; `X-Sha256` is the digest of the whole file."""
    found = run_for(request, slug)
    release = Release.objects.filter(run=found, state=Release.State.READY).first()
    file = next((file for file in release.files if file["name"] == name), None) if release else None
    if release is None or file is None:
        raise Http404
    return send_stored(request, release_path(release, name), sha256=file["sha256"])


def _run_facts(run: Run, loss: float | None, online: int) -> dict[str, Any]:
    recipe = run.parsed_recipe
    return {
        "slug": run.slug,
        "title": run.title,
        "state": run.state,
        "starts_at": run.starts_at,
        "step": run.head.step,
        "target_steps": recipe.target_steps,
        "loss": loss,
        "peers_online": online,
        "waiting_for": run.waiting_for,
        "unigram_entropy": run.dataset.unigram_entropy,
        "parameters": run.elements,
        "codec_up": recipe.codec_up,
        "codec_down": recipe.codec_down,
        "contributors": recipe.contributors,
        "codecs": recipe.codecs,
        "recipe": as_values(recipe),
        "data_bytes": recipe.shard_bytes(run.dataset.tokens or 0),
    }


def _heldout_facts(progress: selectors.RunProgress) -> dict[str, Any] | None:
    if not progress.heldout:
        return None
    newest, best = progress.heldout[-1], min(progress.heldout, key=lambda point: point.loss)
    return {"loss": newest.loss, "step": newest.step, "best_loss": best.loss, "best_step": best.step}


def _source_facts(line: SourceLine) -> dict[str, Any]:
    names = ("filename", "size", "licence", "sha256")
    return {**{name: getattr(line.dataset, name) for name in names}, "tokens": line.tokens, "share": line.share}


def _step_facts(entry: LogEntry) -> dict[str, Any]:
    made = ("step", "at", "loss", "tokens", "samples", "peers", "duration_s", "attempts", "exact")
    names = (*made, "state_digest", "is_undone")
    return {"update_digest": entry.digest, **{name: getattr(entry, name) for name in names}}


def _ledger_facts(entry: LedgerEntry) -> dict[str, Any]:
    amounts = {name: getattr(entry, name) for name in ("step", "samples", "tokens", "weight")}
    return {"person": entry.person.username, "machine": entry.machine.name, "reason": entry.reason, **amounts}


def _snapshot_facts(best: Snapshot | None, snapshot: Snapshot) -> dict[str, Any]:
    names = ("index", "step", "digest", "state_digest", "file", "size", "created_at", "heldout_loss", "heldout_figures")
    return {"is_best": snapshot == best, **{name: getattr(snapshot, name) for name in names}}


def _page(
    rows: Sequence[Row], limit: int, facts: Callable[[Row], dict[str, Any]], place: Callable[[Row], int]
) -> dict[str, Any]:
    """Return a page of items from `rows`, which has one row more than `limit` if there is a next page."""
    shown: Iterable[Row] = rows[:limit]
    return {"items": [facts(row) for row in shown], "next": str(place(rows[limit - 1])) if len(rows) > limit else None}


# A run's last plan, for everyone who may see the run. Machines' links, for their owners and the run's managers


@router.get("runs/{slug:slug}/plan", response={200: LastPlan, **READING})
def plan(request: HttpRequest, slug: Slug) -> dict[str, Any]:
    """Return the machines that sent and averaged in the last step, and the connections that limited it."""
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
def links(request: HttpRequest, slug: Slug, cursor: Offset = 0, limit: Limit = ITEMS) -> dict[str, Any]:
    """List the measured connection speeds of your machines in this run, or of all machines if you manage it."""
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
