"""Functions that load a run's picture from the database."""

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from uuid import UUID

from cachetools import TTLCache, cached
from django.conf import settings
from django.utils import timezone
from django.utils.translation import override

from accounts.days import day_of
from coordination import presence
from peer_agent.protocol.errors import Fault
from runs import selectors
from runs.access import BESIDE
from runs.ledger.standings import Period, PeriodLine, period_board
from runs.models import Run
from runs.timeline import resumed_at
from web.run_picture.alerts import Watch, run_troubles
from web.run_picture.picture import LEADERBOARD_LINES, PERIODS, Picture, Seen, picture_of

ENGLISH = "en"
BOARDS_S, MOST_BOARDS = 10.0, 256  # seconds for which period boards are kept, and for how many runs

PeriodBoards = Mapping[Period, Sequence[PeriodLine]]


def seen_of(run: Run, *, with_links: bool = False) -> Seen:
    """Return everything that a run's page shows now, and the machines' links if `with_links`."""
    picture = selectors.run_picture(run, lines=LEADERBOARD_LINES, today=day_of(timezone.now()))
    return _seen(run, picture, with_links=with_links, by_period=period_boards(run))


def head_of(run: Run) -> Seen:
    """Return the head of a run's pages in three queries: state, progress, sums and connected machines."""
    return _seen(run, selectors.run_head(run))


def _seen(
    run: Run, picture: selectors.RunPicture, *, with_links: bool = False, by_period: PeriodBoards | None = None
) -> Seen:
    here = presence.here(run, with_links=with_links)
    return Seen(
        run=picture,
        peers=here.peers,
        phase=here.phase,
        void_rounds=selectors.void_rounds(run),
        now=timezone.now(),
        outline=here.plan,
        links=here.links,
        crowd=here.crowd,
        by_period=by_period or {},
    )


@cached(TTLCache(MOST_BOARDS, BOARDS_S), key=lambda run: run.pk, lock=Lock())
def period_boards(run: Run) -> PeriodBoards:
    """Return the first lines of this week's and today's boards. They may be `BOARDS_S` old, because summing is slow."""
    now = timezone.now()
    return {period: period_board(run, period, now, limit=LEADERBOARD_LINES) for period in PERIODS}


def troubles_of(seen: Seen) -> Sequence[Fault]:
    run = seen.run.run
    verification, publication = getattr(run, "verification", None), getattr(run, "publication", None)
    watch = Watch(seen.crowd, partial(resumed_at, run))
    return run_troubles(seen, verification, publication, watch)


def prepare_looks() -> None:
    """Load one run when the site starts, so that Django prepares its queries before the first reader arrives."""
    run = Run.objects.filter(state=Run.State.OPEN).order_by("-pk").first()
    if run is not None:
        look(run.pk)


def look(run_id: UUID, language: str = ENGLISH) -> Picture | None:
    """Return the picture of a run in a language; None if the run is gone."""
    run = Run.objects.select_related(*BESIDE).filter(pk=run_id).first()
    return picture_in(language, run) if run else None


def picture_in(language: str, run: Run) -> Picture:
    with override(language):
        return picture_of(seen_of(run))


def known_language(asked: str) -> str:
    """Return the requested language if the site has it, else English."""
    return asked if asked in dict(settings.LANGUAGES) else ENGLISH
