"""What other sites show of a run: a badge, and its curve and leaderboard in a frame."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_cache_control
from django.utils.safestring import mark_safe
from django.utils.translation import override
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import condition, require_safe

from coordination import presence
from coordination.presence import TRAINER
from runs.access import access_run
from runs.models import Run
from web.http.middleware import POLICY
from web.http.requester import run_or_404
from web.run_picture.charts.loss import NARROW, loss_chart
from web.run_picture.counts import steps
from web.run_picture.loading import seen_of
from web.run_picture.picture import picture_of
from web.run_picture.status_sentence import state_label, word_of
from web.words import loss_unit_of_page

BADGE_S = 60  # that a badge may be old
BOARD = 5  # rows in a frame
LETTER = 6.6  # pixels of a letter of 11, about; the text is told its length, so that it fits in every font
NAME = "manyhands"
FRAMED = POLICY.replace("frame-ancestors 'none'", "frame-ancestors *")


@require_safe
def badge(request: HttpRequest, slug: str) -> HttpResponse:
    """Step and state as an SVG, or 304 where the asker has it."""
    run = run_or_404(access_run, request, slug)
    with override("en"):  # it stands on pages of any language, and who asks for it is often a program
        words = _words(run)

    @condition(etag_func=lambda _: f'"{words}"'.replace(" ", "-").replace("·", ""))
    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(
            badge_svg(words), content_type="image/svg+xml", headers={"Cache-Control": f"max-age={BADGE_S}"}
        )

    return answer(request)


def _words(run: Run) -> str:
    """“running · step 413 of 1,000”."""
    if run.state == Run.State.FINISHED:
        return f"finished · {steps(run.head.step)}"
    trainers = [peer for peer in presence.online(run) if peer.role == TRAINER]
    label = state_label(word_of(run, run.dataset, trainers), trainers).lower()
    return f"{label} · step {run.head.step:,} of {run.parsed_recipe.target_steps:,}"


def badge_svg(words: str) -> str:
    """Two boxes with our name and these words, which are our own."""
    left, right = (round(LETTER * len(text)) + 16 for text in (NAME, words))
    text = '<text x="{x}" y="14" textLength="{length}" fill="#fff">{text}</text>'
    parts = (
        f'<rect width="{left + right}" height="20" rx="3" fill="#3c4043"/>',
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="#1a7a4c"/>',
        text.format(x=8, length=left - 16, text=NAME),
        text.format(x=left + 8, length=right - 16, text=words),
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img"'
    font = '<g font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
    return f'{head} aria-label="{NAME}: {words}"><title>{NAME}: {words}</title>{font}{"".join(parts)}</g></svg>'


@xframe_options_exempt
@require_safe
def embed(request: HttpRequest, slug: str) -> HttpResponse:
    """A small page for a frame on another site: the curve, or the leaderboard (`?show=leaderboard`)."""
    run = run_or_404(access_run, request, slug)
    seen = seen_of(run)
    live, unit = picture_of(seen), loss_unit_of_page(run.parsed_recipe)[0]
    chart = loss_chart(seen.run.points, run.dataset.unigram_entropy, NARROW, seen.run.heldout, unit=unit)
    facts = {
        "run": run,
        "live": live,
        "show": "leaderboard" if request.GET.get("show") == "leaderboard" else "curve",
        "board": live["leaderboard"][:BOARD],
        "chart": mark_safe(chart),  # noqa: S308 (made of numbers and fixed words alone)
        "address": request.build_absolute_uri(f"/runs/{run.slug}/"),
    }
    answer = render(request, "web/runs/embed.html", facts)
    answer.headers["Content-Security-Policy"] = FRAMED
    patch_cache_control(answer, max_age=BADGE_S)
    return answer
