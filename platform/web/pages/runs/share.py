"""Ways to show a run elsewhere: badge, frame, preview image, curve as CSV, notebook, poster, projector."""

import csv
import io
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import sha256
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import patch_cache_control
from django.utils.safestring import mark_safe
from django.utils.translation import override
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import condition, require_safe

from coordination import presence
from coordination.presence import TRAINER, OnlinePeer
from runs import selectors
from runs.access import access_run
from runs.ledger.standings import totals
from runs.models import Run
from web import qr, strokes
from web.agent_package import install_lines
from web.http.middleware import POLICY
from web.http.requester import run_or_404
from web.pages.runs.run import REFRESH_S, needs_words, whole_run
from web.pages.site.about import download_page
from web.run_picture.card_sentences import given_by, last_step
from web.run_picture.counts import steps
from web.run_picture.curves import NARROW, loss_chart
from web.run_picture.image import Shown, curve_png, site_png
from web.run_picture.loading import seen_of
from web.run_picture.picture import picture_of, standing_of
from web.run_picture.status_sentence import RUNNING, start_words, state_label, training_in, word_of
from web.words import loss_unit_of_page

BADGE_S = 60  # how long a badge may be cached
BOARD = 5  # leaderboard rows in a frame
LETTER = 6.6  # assumed width of a letter in pixels at size 11; `textLength` makes any font fit
NAME = "manyhands"
FRAMED = POLICY.replace("frame-ancestors 'none'", "frame-ancestors *")
# Losses are in nats per token. Times are UTC, in ISO 8601 to the second. The other columns have the charts' units.
COLUMNS = ("step", "loss", "heldout_loss", "at", "samples_per_s", "machines", "learning_rate", "bytes_averaged")
KIND = "application/x-ipynb+json"
MOMENT = "%Y%m%dT%H%M%SZ"  # a time in a calendar entry, in UTC
MOST = 64  # most images kept, of about 20 kB each
FRESH_S = 30.0  # seconds for which an image is used before its run is read again
SITE = "the site"
Facts = TypeVar("Facts")


@require_safe
def badge(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the run's step and state as an SVG, or status 304 if the client already has it."""
    run = run_or_404(access_run, request, slug)
    with override("en"):  # badges appear on pages in any language, and programs often fetch them
        words = _words(run)

    @condition(etag_func=lambda _: f'"{words}"'.replace(" ", "-").replace("·", ""))
    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(
            badge_svg(words), content_type="image/svg+xml", headers={"Cache-Control": f"max-age={BADGE_S}"}
        )

    return answer(request)


def _words(run: Run) -> str:
    """Return the badge's text, such as “running · step 413 of 1,000”."""
    if run.state == Run.State.FINISHED:
        return f"finished · {steps(run.head.step)}"
    trainers = training_in(run, presence.online(run))
    label = state_label(word_of(run, run.dataset, trainers), trainers).lower()
    return f"{label} · step {run.head.step:,} of {run.parsed_recipe.target_steps:,}"


def badge_svg(words: str) -> str:
    """Return an SVG of two boxes: this site's name, and `words`, which are not escaped and must be trusted."""
    left, right = (round(LETTER * len(text)) + 16 for text in (NAME, words))
    text = '<text x="{x}" y="14" textLength="{length}" fill="#fff">{text}</text>'
    parts = (
        f'<rect width="{left + right}" height="20" rx="3" fill="#22201d"/>',
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="#a8431a"/>',
        text.format(x=8, length=left - 16, text=NAME),
        text.format(x=left + 8, length=right - 16, text=words),
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img"'
    font = '<g font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
    return f'{head} aria-label="{NAME}: {words}"><title>{NAME}: {words}</title>{font}{"".join(parts)}</g></svg>'


@xframe_options_exempt
@require_safe
def embed(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a small page for a frame on another site: the curve, or the leaderboard with `?show=leaderboard`."""
    run = run_or_404(access_run, request, slug)
    seen = seen_of(run)
    live, unit = picture_of(seen), loss_unit_of_page(run.parsed_recipe)[0]
    chart = loss_chart(seen.run.points, run.dataset.unigram_entropy, NARROW, seen.run.heldout, unit=unit)
    facts = {
        "run": run,
        "live": live,
        "show": "leaderboard" if request.GET.get("show") == "leaderboard" else "curve",
        "board": live["leaderboard"][:BOARD],
        "chart": mark_safe(chart),  # noqa: S308 (only numbers and fixed words)
        "address": run_address(request, run),
    }
    answer = render(request, "web/runs/embed.html", facts)
    answer.headers["Content-Security-Policy"] = FRAMED
    patch_cache_control(answer, max_age=BADGE_S)
    return answer


@require_safe
def poster(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a page that prints on a single sheet of A4, with a QR code leading to the run."""
    run = run_or_404(access_run, request, slug)
    seen = seen_of(run)
    live, address, at = picture_of(seen), run_address(request, run), run.later_start(seen.now)
    facts = {
        "run": run,
        "live": live,
        "start": {"at": at, "when": start_words(at, seen.now)} if at else None,
        "needs": needs_words(run.parsed_recipe),
        "drawing": whole_run(seen.run, live) if live["points"] else strokes.art(),
        "address": address,
        "qr": qr.drawn(address),
    }
    return render(request, "web/runs/poster.html", facts)


@require_safe
def start_event(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the start of a run as a calendar entry with a reminder, or status 404 if it has no start time to come."""
    run = run_or_404(access_run, request, slug)
    at, title = run.later_start(), re.sub(r"[\\;,]", r"\\\g<0>", " ".join(run.title.split()))
    if at is None:
        raise Http404
    lines = (
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//Manyhands//EN",
        "BEGIN:VEVENT",
        f"UID:{run.id.hex}@manyhands",
        f"DTSTAMP:{timezone.now():{MOMENT}}",
        f"DTSTART:{at:{MOMENT}}",
        f"SUMMARY:{title}",
        f"URL:{run_address(request, run)}",
        "BEGIN:VALARM",
        "ACTION:DISPLAY",
        f"DESCRIPTION:{title}",
        "TRIGGER:-PT10M",
        "END:VALARM",
        "END:VEVENT",
        "END:VCALENDAR",
    )
    headers = {"Content-Disposition": f'attachment; filename="{run.slug}.ics"', "Cache-Control": "no-cache"}
    return HttpResponse("".join(f"{line}\r\n" for line in lines), content_type="text/calendar", headers=headers)


@require_safe
def qr_code(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the QR code of the run's page as an SVG."""
    drawn = io.BytesIO()
    address = run_address(request, run_or_404(access_run, request, slug))
    qr.code_of(address).save(drawn, kind="svg", scale=10, **qr.FRAMED)
    headers = {"Cache-Control": f"max-age={BADGE_S}"}
    return HttpResponse(drawn.getvalue(), content_type="image/svg+xml", headers=headers)


@require_safe
def projector(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the run on one screen without scrolling, readable from afar. The run page's feed keeps it up to date."""
    run = run_or_404(access_run, request, slug)
    seen = seen_of(run)
    live, unit, address = picture_of(seen), loss_unit_of_page(run.parsed_recipe)[0], run_address(request, run)
    chart = loss_chart(seen.run.points, run.dataset.unigram_entropy, NARROW, seen.run.heldout, unit=unit)
    facts = {
        "run": run,
        "live": live,
        "live_standing": standing_of(live),
        "picture": seen.run,
        "chart_wide": mark_safe(chart),  # noqa: S308 (only numbers and fixed words)
        "address": address,
        "address_parts": address.partition("://")[2].rstrip("/").replace("/", "/ ").split(),
        "qr": qr.drawn(address, is_framed=True),
        "refresh_s": REFRESH_S,
    }
    return render(request, "web/runs/projector.html", facts)


def run_address(request: HttpRequest, run: Run) -> str:
    return request.build_absolute_uri(f"/runs/{run.slug}/")


@require_safe
def curve_table(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the curve as CSV, with one row per point, in order. Each held-out loss has a row of its own."""
    run = run_or_404(access_run, request, slug)
    points = selectors.loss_points(run, most=selectors.LONG)
    rows: list[tuple[Any, ...]] = [(point.step, f"{point.loss:.5f}", "", *_others(point)) for point in points]
    held = selectors.heldout_points(run)
    rows += [(point.step, "", f"{point.loss:.5f}", point.at, "", "", "", "") for point in held]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for step, loss, heldout, at, *others in sorted(rows, key=lambda row: row[0]):
        writer.writerow((step, loss, heldout, at.isoformat(timespec="seconds") if at else "", *others))
    headers = {"Content-Disposition": f'attachment; filename="{run.slug}-loss.csv"', "Cache-Control": "no-cache"}
    return HttpResponse(table.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


def _others(point: selectors.Point) -> tuple[Any, ...]:
    speed = "" if point.samples_per_s is None else f"{point.samples_per_s:.4g}"
    return point.at, speed, point.machines, point.learning_rate, point.bytes_averaged


@require_safe
def notebook(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_run, request, slug)
    install = install_lines(request)
    if install is None:
        return download_page(request)
    made = document(title=run.title, address=run_address(request, run), requirement=install.requirement)
    headers = {"Content-Disposition": f'attachment; filename="{run.slug}.ipynb"'}
    return HttpResponse(json.dumps(made, indent=1), content_type=KIND, headers=headers)


def document(*, title: str, address: str, requirement: str) -> dict[str, Any]:
    """Return a notebook (format 4.5) that joins a run. The untrusted title must stay within its comment line."""
    lines = [
        f"# Joins “{' '.join(title.split())}” at {address}",
        "# Open the link it prints, check the code, and approve. Stop the cell to leave.",
        "# A GPU is used if available. Kaggle: first turn on Internet in the notebook's settings.",
        f"%pip install --quiet {requirement}",
        f"!PYTHONUNBUFFERED=1 manyhands join {address}",
    ]
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "join",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": [f"{line}\n" for line in lines[:-1]] + lines[-1:],
    }
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    facts = {"kernelspec": kernel, "language_info": {"name": "python"}, "accelerator": "GPU"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": facts, "cells": [cell]}


class Drawn(NamedTuple):
    """An image, the facts that it was drawn from, and when these were last checked."""

    shown: object
    png: bytes
    etag: str
    looked_at: float


_kept: OrderedDict[Hashable, Drawn] = OrderedDict()
_pen = Lock()


@require_safe
def curve_image(request: HttpRequest, slug: str) -> HttpResponse:
    """Return a run's preview image, or status 304 if the client already has it."""
    run = run_or_404(access_run, request, slug)
    return _answered(request, _drawn(run.pk, lambda: shown_of(run), curve_png))


@require_safe
def site_image(request: HttpRequest) -> HttpResponse:
    return _answered(request, _drawn(SITE, who_trains, site_png))


def _answered(request: HttpRequest, drawn: Drawn) -> HttpResponse:
    @condition(etag_func=lambda _: drawn.etag)
    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(drawn.png, content_type="image/png", headers={"Cache-Control": "max-age=60"})

    return answer(request)


def _drawn(key: Hashable, look: Callable[[], Facts], draw: Callable[[Facts], bytes]) -> Drawn:
    """Return the image with this key. If it is missing or old, `look` gets its facts and `draw` draws it.

    Only one image is drawn at a time. While another is being drawn, return the old image, or wait if there is none.
    """
    known = _kept.get(key)
    if known is not None and (monotonic() - known.looked_at < FRESH_S or not _pen.acquire(blocking=False)):
        return known
    if known is None:
        _pen.acquire()
    try:
        with override("en"):  # Pillow's own font has only Latin letters
            return _looked(key, look, draw)
    finally:
        _pen.release()


def _looked(key: Hashable, look: Callable[[], Facts], draw: Callable[[Facts], bytes]) -> Drawn:
    """Draw the image if its facts have changed. A caller that had to wait gets the image drawn in the meantime."""
    now, known = monotonic(), _kept.get(key)
    if known is not None and now - known.looked_at < FRESH_S:
        return known
    shown = look()
    if known is not None and known.shown == shown:
        drawn = known._replace(looked_at=now)
    else:
        png = draw(shown)
        drawn = Drawn(shown, png, f'"{sha256(png).hexdigest()[:24]}"', now)
    _kept[key] = drawn
    _kept.move_to_end(key)
    while len(_kept) > MOST:
        _kept.popitem(last=False)
    return drawn


def shown_of(run: Run) -> Shown:
    trainers = training_in(run, presence.online(run))
    word = word_of(run, run.dataset, trainers)
    return Shown(
        points=selectors.loss_points(run),
        entropy=run.dataset.unigram_entropy,
        heldout=selectors.heldout_points(run),
        step=run.head.step,
        target_steps=last_step(run, run.head.step, run.parsed_recipe.target_steps),
        title=run.title,
        state=state_label(word, trainers),
        is_alive=word == RUNNING,
        people=_people(run, trainers),
    )


def _people(run: Run, trainers: list[OnlinePeer]) -> str:
    """Return text such as “12 people on 19 machines now”.

    If no one is training, return text such as “30 people on 41 machines so far”, or "" if there are no contributions.
    """
    if trainers:
        return f"{given_by(len({peer.name for peer in trainers}), len(trainers))} now"
    sums = totals(run)
    return f"{given_by(sums.people, sums.machines)} so far" if sums.people else ""


def who_trains() -> str:
    """Return text such as “12 people on 19 machines are training 3 models now”, or "" if no one is training."""
    here = presence.online_in(selectors.hosted_runs(None))
    training = {run: [peer for peer in peers if peer.role == TRAINER] for run, peers in here.items()}
    peers = [peer for found in training.values() for peer in found]
    if not peers:
        return ""
    people, machines = len({peer.name for peer in peers}), len({peer.peer for peer in peers})
    number = sum(bool(found) for found in training.values())
    models = f"{number:,} {'model' if number == 1 else 'models'}"
    return f"{given_by(people, machines)} {'is' if people == 1 else 'are'} training {models} now"
