"""The images beside links. That of a run is drawn once for every state of the run, however many ask."""

from functools import cache
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import condition, require_safe

from runs import selectors
from runs.access import access_run
from runs.models import Run
from web.http.access import run_or_404
from web.run_picture.curve_image import Shown, curve_png, site_png

MOST = 64  # images that are kept, of some 20 kB

State = tuple[UUID, int, int, int]
_kept: dict[State, bytes] = {}


@require_safe
def curve_image(request: HttpRequest, slug: str) -> HttpResponse:
    """The PNG, or 304 where the asker has it."""
    run = run_or_404(access_run, request, slug)
    state = _state(run)

    @condition(etag_func=lambda _: f'"{state[0].hex[:12]}-{state[1]}-{state[2]}-{state[3]}"')
    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(_drawn(run, state), content_type="image/png", headers={"Cache-Control": "max-age=60"})

    return answer(request)


@require_safe
def site_image(request: HttpRequest) -> HttpResponse:
    """The PNG beside a link to the site."""
    del request
    return HttpResponse(_site_image(), content_type="image/png", headers={"Cache-Control": "max-age=86400"})


@cache
def _site_image() -> bytes:
    return site_png()


def _state(run: Run) -> State:
    """What the image depends on: the run, its head, its newest held-out loss, and how far it goes."""
    measured = run.snapshots.exclude(heldout_loss=None).order_by("-index").values_list("index", flat=True).first()
    return run.pk, run.head.index, measured or 0, run.parsed_recipe.target_steps


def _drawn(run: Run, state: State) -> bytes:
    image = _kept.get(state)
    if image is None:
        points, heldout = selectors.loss_points(run), selectors.heldout_points(run)
        image = curve_png(Shown(points, run.dataset.unigram_entropy, heldout, run.head.step, state[-1]))
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[state] = image
    return image
