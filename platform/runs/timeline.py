"""What happened in a run, a line at a time, in words for people."""

from django.db.models import F, QuerySet

from runs.models import ActivityLine, Head, Run

STEP = "step"  # the kind of a line that a commit writes
VOID = "void"  # and of one about a round that could not finish
MEMBER = "member"  # and of one about somebody who was let in or removed
GROUPS = {
    "steps": (STEP,),
    "people": ("joined", "left", MEMBER, "evicted"),
    "problems": (
        *(VOID, "silent", "dropped", "late", "refused", "replan", "non-finite", "returned", "reload", "replay"),
        *("failed", "unpublished", "lost words"),
    ),
    "organizer": (
        *("created", "edited", "mixed", "prepared", "opened", "paused", "resumed", "extended", "ending", "taken back"),
        *("announced", "finished", "replayed", "release", "published"),
    ),
}  # kinds, as people look for them
STEPS_KEPT = 64  # lines; the log knows every step, and a page shows a few


def quoted(text: str) -> str:
    """Somebody's words within ours, in quotes; right-to-left writing stays within them (Unicode isolates)."""
    return f"“\u2068{text}\u2069”"


def activity_of(run: Run, group: str = "") -> QuerySet[ActivityLine]:
    """Lines of a group; of none, all.

    Guests are named to guests alone: a run may have been by invitation, and be open to everybody by now.
    """
    lines = run.activity.filter(kind__in=GROUPS[group]) if group else run.activity.all()
    return lines if run.visibility == Run.Visibility.PRIVATE else lines.exclude(kind=MEMBER)


def add_line(*, run: Run, kind: str, text: str) -> None:
    """Add a line to the run's timeline."""
    ActivityLine.objects.create(run=run, kind=kind[:20], text=text[:300])
    if kind == STEP:
        _forget_old_steps(run)
    elif kind == VOID:
        Head.objects.filter(run=run).update(void_rounds=F("void_rounds") + 1)


def _forget_old_steps(run: Run) -> None:
    steps = run.activity.filter(kind=STEP)
    oldest = steps.order_by("-pk").values_list("pk", flat=True)[STEPS_KEPT : STEPS_KEPT + 1].first()
    if oldest is not None:
        steps.filter(pk__lte=oldest).delete()


def add_line_once(*, run: Run, kind: str, text: str) -> None:
    """The same for what is tried again and again: the timeline says it once."""
    if not run.activity.filter(kind=kind, text=text[:300]).exists():
        add_line(run=run, kind=kind, text=text)
