"""A run's picture out of the database."""

from uuid import UUID

from django.utils import timezone

from runs import selectors
from runs.models import Publication, Run, Verification
from web.run_picture import presence
from web.run_picture.picture import LEADERBOARD_LINES, Picture, Seen, picture_of


def seen_of(run: Run) -> Seen:
    """What there is to see of a run now."""
    step = presence.current_step(run)
    return Seen(
        run=selectors.run_picture(run, lines=LEADERBOARD_LINES),
        peers=presence.online(run),
        phase=step["phase"] if step else "",
        void_rounds=selectors.void_rounds(run),
        now=timezone.now(),
        outline=presence.last_plan(run),
    )


def troubled_rows(run: Run) -> tuple[Verification | None, Publication | None]:
    """What else of a run may have failed: its replay, and what was sent to the Hub."""
    return Verification.objects.filter(run=run).first(), Publication.objects.filter(run=run).first()


def prepare_looks() -> None:
    """Look once, for nobody, as a site starts: Django prepares its queries when they are first made, and the first
    reader would pay for that.
    """
    run = Run.objects.filter(state=Run.State.OPEN).order_by("-pk").first()
    if run is not None:
        look(run.pk)


def look(run_id: UUID) -> Picture | None:
    """The picture, None where the run is gone."""
    run = Run.objects.select_related("dataset", "organizer", "head").filter(pk=run_id).first()
    return picture_of(seen_of(run)) if run else None
