"""Functions that load a run's picture from the database."""

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock

from cachetools import TTLCache, cached
from django.conf import settings
from django.utils import timezone

from accounts.days import day_of
from coordination import presence
from peer_agent.protocol.errors import Fault
from runs import selectors
from runs.ledger.standings import Period, PeriodLine, period_board
from runs.models import Run
from runs.timeline import resumed_at
from web.run_picture.alerts import run_troubles
from web.run_picture.picture import LEADERBOARD_LINES, PERIODS, Seen

ENGLISH = "en"
BOARDS_S, MOST_BOARDS = 10.0, 256  # seconds for which these boards are cached, and most runs in the cache

PeriodBoards = Mapping[Period, Sequence[PeriodLine]]


def seen_of(run: Run, *, with_links: bool = False) -> Seen:
    """Return everything that a run's page shows at this moment. With `with_links`, include the machines' links."""
    picture = selectors.run_picture(run, lines=LEADERBOARD_LINES, today=day_of(timezone.now()))
    return _seen(run, picture, with_links=with_links, by_period=period_boards(run))


def head_of(run: Run) -> Seen:
    """Return what the top of a run's pages shows: state, progress, totals and connected machines, in three queries."""
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
        resumed_at=partial(resumed_at, run),
        by_period=by_period or {},
    )


@cached(TTLCache(MOST_BOARDS, BOARDS_S), key=lambda run: run.pk, lock=Lock())
def period_boards(run: Run) -> PeriodBoards:
    """Return the top rows of this week's and today's leaderboards.

    They are cached for `BOARDS_S` seconds, because adding up the samples is slow.
    """
    now = timezone.now()
    return {period: period_board(run, period, now, limit=LEADERBOARD_LINES) for period in PERIODS}


def troubles_of(seen: Seen) -> Sequence[Fault]:
    run = seen.run.run
    verification, publication = getattr(run, "verification", None), getattr(run, "publication", None)
    return run_troubles(seen, verification, publication)


def known_language(asked: str) -> str:
    """Return the requested language if the site has it, otherwise English."""
    return asked if asked in dict(settings.LANGUAGES) else ENGLISH
