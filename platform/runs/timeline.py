"""What happened in a run, a line at a time, in words for people."""

from datetime import datetime

from django.db.models import F, QuerySet

from accounts.models import Person
from runs.models import ActivityLine, Head, Run

STEP = "step"  # the kind of a line that a commit writes
VOID = "void"  # and of one about a round that could not finish
MEMBER = "member"  # and of one about somebody who was let in or removed
ROLLING_BACK, ROLLED_BACK = "rolling back", "rolled back"  # that it is wanted, and that it is done
GROUPS = {
    "steps": (STEP,),
    "people": ("joined", "left", MEMBER, "evicted"),
    "problems": (
        *(VOID, "silent", "dropped", "late", "refused", "replan", "non-finite", "returned", "reload", "replay"),
        *("failed", "unpublished", "lost words"),
    ),
    "organizer": (
        *("created", "edited", "mixed", "prepared", "opened", "paused", "resumed", "extended", "ending", "taken back"),
        *(ROLLING_BACK, ROLLED_BACK),
        *("announced", "publishing", "handed over", "trial", "finished", "replayed", "release", "published"),
    ),
}  # kinds, as people look for them
ROLE = "role"  # the kind of a line about who may do what in a run
AN_OPERATOR = "An operator of this site"  # as timelines name one
STEPS_KEPT = 64  # lines; the log knows every step, and a page shows a few


def quoted(text: str) -> str:
    """Somebody's words within ours, in quotes; right-to-left writing stays within them (Unicode isolates)."""
    return f"“\u2068{text}\u2069”"


def activity_of(run: Run, group: str = "") -> QuerySet[ActivityLine]:
    """Lines of a group that everybody may read who sees the run; of none, all.

    Guests are named to guests alone: a run may have been by invitation, and be open to everybody by now.
    """
    lines = run.activity.filter(is_internal=False)
    lines = lines.filter(kind__in=GROUPS[group]) if group else lines
    return lines if run.visibility == Run.Visibility.PRIVATE else lines.exclude(kind=MEMBER)


def trail_of(run: Run) -> QuerySet[ActivityLine]:
    """What its organizer, those who help them and operators did to a run, the last first. Not for everybody."""
    return run.activity.filter(by__isnull=False).select_related("by", "on").order_by("-pk")


def resumed_at(run: Run) -> datetime | None:
    """When the run was last let go on after a pause; None where it never was."""
    return run.activity.filter(kind="resumed").order_by("-at", "-id").values_list("at", flat=True).first()


def add_action(
    *,
    run: Run,
    kind: str,
    deed: str = "",
    text: str = "",
    by: Person | None = None,
    role: Run.Role | None = None,
    on: Person | None = None,
    is_internal: bool = False,
) -> None:
    """Write what somebody did to a run: “Amina” and “paused the run.” Lines of this kind are only ever added.

    `text`: instead of name and deed; `by`: the organizer where nobody is named; `role`: where it is another one than
    they hold now; `is_internal`: for the trail alone.
    """
    who = by or run.organizer
    acted_as = role or run.role_of(who) or ""
    name = AN_OPERATOR if acted_as == Run.Role.OPERATOR else who.username
    told = (text or f"{name} {deed}")[:300]
    ActivityLine.objects.create(run=run, kind=kind, text=told, by=who, by_role=acted_as, on=on, is_internal=is_internal)


def add_line(*, run: Run, kind: str, text: str) -> None:
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
