"""The images beside links. Each is drawn once in a while, however many ask, and never two at a time."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import sha256
from threading import Lock
from time import monotonic
from typing import NamedTuple, TypeVar

from django.http import HttpRequest, HttpResponse
from django.utils.translation import override
from django.views.decorators.http import condition, require_safe

from coordination import presence
from coordination.presence import TRAINER, OnlinePeer
from runs import selectors
from runs.access import access_run
from runs.ledger.standings import totals
from runs.models import Run
from web.http.requester import run_or_404
from web.run_picture.card_sentences import given_by
from web.run_picture.charts.image import Shown, curve_png, site_png
from web.run_picture.status_sentence import RUNNING, state_label, word_of

MOST = 64  # images that are kept, of some 20 kB
FRESH_S = 30.0  # that an image stays as it is, whatever happens in its run
SITE = "the site"
Facts = TypeVar("Facts")


class Drawn(NamedTuple):
    """An image, of what it was drawn, and when somebody last looked whether that still holds."""

    shown: object
    png: bytes
    etag: str
    looked_at: float


_kept: OrderedDict[Hashable, Drawn] = OrderedDict()
_pen = Lock()


@require_safe
def curve_image(request: HttpRequest, slug: str) -> HttpResponse:
    """The PNG of a run, or 304 where the asker has it."""
    run = run_or_404(access_run, request, slug)
    return _answered(request, _drawn(run.pk, lambda: shown_of(run), curve_png))


@require_safe
def site_image(request: HttpRequest) -> HttpResponse:
    """The PNG beside a link to the site."""
    return _answered(request, _drawn(SITE, who_trains, site_png))


def _answered(request: HttpRequest, drawn: Drawn) -> HttpResponse:
    @condition(etag_func=lambda _: drawn.etag)
    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(drawn.png, content_type="image/png", headers={"Cache-Control": "max-age=60"})

    return answer(request)


def _drawn(key: Hashable, look: Callable[[], Facts], draw: Callable[[Facts], bytes]) -> Drawn:
    """The image of the key. While one is drawn, whoever asks for another gets the last one of that, or waits."""
    known = _kept.get(key)
    if known is not None and (monotonic() - known.looked_at < FRESH_S or not _pen.acquire(blocking=False)):
        return known
    if known is None:
        _pen.acquire()
    try:
        with override("en"):  # Pillow's own letters are Latin ones
            return _looked(key, look, draw)
    finally:
        _pen.release()


def _looked(key: Hashable, look: Callable[[], Facts], draw: Callable[[Facts], bytes]) -> Drawn:
    """Draw it where what it shows has changed. Whoever waited finds what was drawn meanwhile."""
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
    """What there is to draw of a run now."""
    trainers = [peer for peer in presence.online(run) if peer.role == TRAINER]
    word = word_of(run, run.dataset, trainers)
    return Shown(
        points=selectors.loss_points(run),
        entropy=run.dataset.unigram_entropy,
        heldout=selectors.heldout_points(run),
        step=run.head.step,
        target_steps=run.parsed_recipe.target_steps,
        title=run.title,
        state=state_label(word, trainers),
        is_alive=word == RUNNING,
        people=_people(run, trainers),
    )


def _people(run: Run, trainers: list[OnlinePeer]) -> str:
    """“12 people on 19 machines now”; where nobody is here, who was."""
    if trainers:
        return f"{given_by(len({peer.name for peer in trainers}), len(trainers))} now"
    sums = totals(run)
    return f"{given_by(sums.people, sums.machines)} so far" if sums.people else ""


def who_trains() -> str:
    """“12 people on 19 machines are training 3 models now”, in listed runs; empty where nobody is."""
    here = presence.online_in(selectors.hosted_runs(None))
    training = {run: [peer for peer in peers if peer.role == TRAINER] for run, peers in here.items()}
    peers = [peer for found in training.values() for peer in found]
    if not peers:
        return ""
    people, machines = len({peer.name for peer in peers}), len({peer.peer for peer in peers})
    number = sum(bool(found) for found in training.values())
    models = f"{number:,} {'model' if number == 1 else 'models'}"
    return f"{given_by(people, machines)} {'is' if people == 1 else 'are'} training {models} now"
